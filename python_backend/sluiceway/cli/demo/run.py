"""The demo's story: a quiet time, the crowd, a quiet time again."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from sluiceway.cli.bench import report
from sluiceway.cli.bench.departures import finished_entries, wait_until_idle
from sluiceway.cli.bench.readers import ReaderLoop, Reading
from sluiceway.cli.demo.cast import NORMAL, STUCK, VANISHING, Crowd, Questioner
from sluiceway.cli.demo.verdict import Evidence, show, verdict
from sluiceway.cli.demo.view import View
from sluiceway.cli.stack import Stack, StackSettings

QUIET_S = 12.0
CROWD_S = 18.0
SETTLE_LIMIT_S = 60.0
VANISH_AFTER_TOKENS = 12
TICK_S = 0.1
CONFIG: dict[str, Any] = {
    "engine": {"kind": "torch"},
    # The default of 256 tokens is sized for a GPU; this CPU makes about 10 tokens/s a stream, so that a
    # reader who stopped would be waited for half a minute.
    "flow_control": {
        "high": {"bytes": 16384, "tokens": 64, "frames": 96},
        "low": {"bytes": 4096, "tokens": 16, "frames": 24},
    },
    # By cost, six readers would keep their KV for as long as nobody wants it, which shows nothing.
    "policy": {"mode": "drop"},
}


def run_demo(out: Path | None = None, console: Console | None = None) -> bool:
    """Play it, show the summary, write it to ``out`` as JSON. True if the promises held.

    Raises StackError or NotInstalledError if the stack does not start, TimeoutError if it stops serving.
    """
    console = console or Console()
    with tempfile.TemporaryDirectory(prefix="sluiceway-demo-") as scratch:
        console.print("Starting Triton with SmolLM2-135M, and Envoy in front of it ...")
        with Stack(StackSettings(run_dir=Path(scratch), config=CONFIG)) as stack, ReaderLoop() as loop:
            evidence = Story(stack, loop, View(console)).play()
    result = verdict(evidence, CONFIG)
    if out is not None:
        report.write(out, report.as_json("demo", result, quick=False), result)
    show(console, evidence, result)
    report.show(console, "demo", result)
    if out is not None:
        console.print(f"The figures: {out}")
    return all(promise.holds for promise in result.promises)


class Story:
    """Plays the phases and collects the evidence."""

    def __init__(self, stack: Stack, loop: ReaderLoop, view: View) -> None:
        self._stack = stack
        self._loop = loop
        self._view = view
        self._questioners = [Questioner(role=role, loop=loop, port=stack.ports.envoy) for role in NORMAL]

    def play(self) -> Evidence:
        with self._view:
            self._measure("Warming up: each asks once", lambda: True, 60)
            wait_until_idle(self._stack)
            start = self._stack.statistics()
            before = self._timed("1 of 4, quiet: three people read", QUIET_S)
            rss_before = self._rss()
            crowd = Crowd(loop=self._loop, port=self._stack.ports.envoy)
            arriving, left_at = self._arrival(crowd)
            during = self._timed("3 of 4, measured: six are paused, two read at 1 KB/s, one is gone", CROWD_S)
            crowded = self._stack.statistics()
            rss_during = self._rss()
            crowd.leave()
            after = self._timed("4 of 4, quiet again: the crowd has left", QUIET_S)
            end = wait_until_idle(self._stack)
        ids = [*crowd.streams]
        return Evidence(
            before=before,
            arriving=arriving,
            during=during,
            after=after,
            start=start,
            crowded=crowded,
            end=end,
            rss_before=rss_before,
            rss_during=rss_during,
            vanished_at=left_at,
            finished=finished_entries(self._stack, ids),
        )

    def _arrival(self, crowd: Crowd) -> tuple[list[Reading], float]:
        """Until each stuck reader has used up what a reader is given on trust, and one has vanished."""
        left_at: list[float] = []

        def settled() -> bool:
            streams = by_name(self._stack.statistics())
            ghost = streams.get(VANISHING.name)
            if not left_at and ghost is not None and ghost["produced"]["tokens"] >= VANISH_AFTER_TOKENS:
                left_at.append(crowd.vanish())
            states = [streams[role.name]["state"] for role in STUCK if role.name in streams]
            return bool(left_at) and all(state == "preempted" for state in states) and len(states) == len(STUCK)

        text = "2 of 4, the crowd arrives: six never read, two read at 1 KB/s, one will vanish"
        answers = self._measure(text, settled, SETTLE_LIMIT_S)
        return answers, left_at[0] if left_at else crowd.vanish()

    def _timed(self, text: str, seconds: float) -> list[Reading]:
        deadline = time.monotonic() + seconds
        return self._measure(text, lambda: time.monotonic() >= deadline, seconds + 1)

    def _measure(self, text: str, is_over: Callable[[], bool], limit_s: float) -> list[Reading]:
        """Ask until ``is_over`` (at most ``limit_s``), let the last answers end; all answers of this phase."""
        self._view.phase(text)
        deadline = time.monotonic() + limit_s
        self._ask(True)
        while not is_over() and time.monotonic() < deadline:
            self._tick()
        self._ask(False)
        while not all(questioner.is_idle for questioner in self._questioners):
            self._tick()
            if time.monotonic() > deadline + 60:
                raise TimeoutError(f"a normal reader's answer did not end within a minute: {text}")
        return [answer for questioner in self._questioners for answer in questioner.take_answers()]

    def _ask(self, is_asking: bool) -> None:
        for questioner in self._questioners:
            questioner.is_asking = is_asking
            questioner.tick()

    def _tick(self) -> None:
        for questioner in self._questioners:
            questioner.tick()
        self._view.update(self._stack.statistics(), self._rss())
        time.sleep(TICK_S)

    def _rss(self) -> int:
        return sum(self._stack.rss_bytes().values())


def by_name(statistics: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The streams of /statistics by the person's name."""
    return {stream["client_id"].split("#")[0]: stream for stream in statistics["streams"]}
