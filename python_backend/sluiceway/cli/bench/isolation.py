"""Do readers that never read slow the people who do?

Each arm measures the same readers in alternating windows, without ("quiet") and with the never-readers,
on the same running stack, so that a slow minute of the machine falls on both.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from sluiceway.cli.bench.als_load import als_step_time
from sluiceway.cli.bench.harness import BenchContext, ScenarioResult, scripted
from sluiceway.cli.bench.pace import Pace, cdf, paused
from sluiceway.cli.bench.plans import SMALL_WINDOW, never_readers, readers
from sluiceway.cli.bench.promise import Promise
from sluiceway.cli.bench.readers import OVER_HTTP1, ReaderProcess
from sluiceway.cli.bench.stats import ratio
from sluiceway.cli.stack import Stack

STEP_S = 0.02
NORMAL = 4
NEVER = 24
NEVER_SHARED_UPSTREAM = 200
ANSWER_TOKENS = 16  # short answers: a p99 of TTFT needs many
NEVER_TOKENS = 50_000


@dataclass(slots=True)
class Arm:
    quiet: Pace = field(default_factory=Pace)
    with_slow: Pace = field(default_factory=Pace)
    never_readers: int = NEVER
    paused: list[int] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        return {
            "never_readers": self.never_readers,
            "paused_when_measured": self.paused,
            "quiet": self.quiet.figures(),
            "with_slow": self.with_slow.figures(),
            "tpot_p50_ratio": self.tpot(50),
            "tpot_p99_ratio": self.tpot(99),
            "ttft_p99_ratio": self.ttft(99),
        }

    def tpot(self, q: float) -> float:
        return ratio(self.with_slow.tpot(q), self.quiet.tpot(q))

    def ttft(self, q: float) -> float:
        return ratio(self.with_slow.ttft_at(q), self.quiet.ttft_at(q))


def run(context: BenchContext) -> ScenarioResult:
    arms: dict[str, Arm] = {}
    # Envoy has one worker here, so every stream of a stack shares one connection to Triton.
    with context.stack("isolation", scripted(STEP_S)) as stack:
        arms["ours"] = measure(context, stack, "own connections")
        if context.protocol not in OVER_HTTP1:
            arms["ours_one_client_connection"] = measure(context, stack, "one client connection", share="all")
        arms["ours_shared_upstream"] = measure(
            context, stack, "one Envoy-to-Triton connection", never=NEVER_SHARED_UPSTREAM
        )
    if context.protocol == "grpc":
        with context.stack("run-to-completion", scripted(STEP_S, mode="run_to_completion")) as stack:
            arms["run_to_completion"] = measure(context, stack, "run to completion", rounds=1, pauses=False)
        with context.naive_stack() as stack:
            arms["naive"] = measure(context, stack, "naive", rounds=1, pauses=False)
    ours = arms["ours"]
    promises = [
        Promise.at_most("normal_tpot_p99_ratio", ours.tpot(99), 1.10, "ratio"),
        Promise.at_most("normal_tpot_p50_ratio", ours.tpot(50), 1.05, "ratio"),
        Promise.at_most("normal_ttft_p99_ratio", ours.ttft(99), 1.15, "ratio"),
    ]
    for name, arm in (
        ("multiplexed_client_tpot_p99_ratio", "ours_one_client_connection"),
        ("shared_upstream_tpot_p99_ratio", "ours_shared_upstream"),
    ):
        if arm in arms:
            promises.append(Promise.at_most(name, arms[arm].tpot(99), 1.15, "ratio"))
    figures = {name: arm.figures() for name, arm in arms.items()}
    if context.protocol == "grpc":
        als = als_step_time(context)
        figures["als"] = als.figures()
        promises.append(Promise.at_most("als_step_time_ratio", als.ratio, 1.03, "ratio"))
    return ScenarioResult(
        settings={
            "engine": "scripted",
            "step_s": STEP_S,
            "normal_readers": NORMAL,
            "never_readers": NEVER,
            "never_readers_shared_upstream": NEVER_SHARED_UPSTREAM,
            "client_stream_window_bytes": SMALL_WINDOW,
            "answer_tokens": ANSWER_TOKENS,
            "protocol": context.protocol,
        },
        arms=figures,
        promises=promises,
        plot=lambda figure: draw(figure, arms),
    )


def measure(
    context: BenchContext,
    stack: Stack,
    label: str,
    *,
    never: int = NEVER,
    share: str | None = None,
    rounds: int | None = None,
    pauses: bool = True,
) -> Arm:
    """Alternate windows with and without never-readers; share: everybody on one client connection.

    pauses: this arm is ours; it is measured once every never-reader stands still.
    """
    arm = Arm(never_readers=never)
    seconds = context.seconds(12, 6)
    for turn in range(rounds or context.count(3, 2)):
        what = f"{label}, round {turn + 1}"
        _window(context, stack, arm.quiet, seconds, f"{what}: quiet", never=0, share=share, pauses=pauses)
        arm.paused.append(
            _window(
                context, stack, arm.with_slow, seconds, f"{what}: with slow", never=never, share=share, pauses=pauses
            )
        )
    context.note(f"{label}: tpot p99 x{arm.tpot(99):.3f}, p50 x{arm.tpot(50):.3f}, ttft p99 x{arm.ttft(99):.3f}")
    return arm


def _window(
    context: BenchContext,
    stack: Stack,
    pace: Pace,
    seconds: float,
    what: str,
    *,
    never: int,
    share: str | None,
    pauses: bool,
) -> int:
    """One window; returns how many never-readers were paused at its end (-1: this arm pauses nobody)."""
    port = stack.ports.envoy
    protocol = context.protocol
    stuck = never_readers(port, never, tokens=NEVER_TOKENS, share=share, protocol=protocol)
    window = SMALL_WINDOW if share else 65_535  # SETTINGS are one connection's: all its streams have them
    people = readers(port, NORMAL, tokens=ANSWER_TOKENS, stream_window=window, share=share, protocol=protocol)
    # In one process only where they must share a connection.
    groups = [[*stuck, *people]] if share else [stuck, people]
    processes = [ReaderProcess(group) for group in groups if group]
    # A process takes its time to start on a busy machine: begin with everybody's second answer.
    context.wait_until(lambda: _answers(processes[-1]) >= NORMAL, f"{what}: warming up")
    if never and pauses:
        context.wait_until(lambda: paused(stack.statistics(), "never") >= never, f"{what}: pausing {never} streams")
    begin = time.monotonic()
    context.sleep(seconds, what)
    end = time.monotonic()
    count = paused(stack.statistics(), "never") if pauses else -1
    for process in processes:
        seen = process.stop()
        pace.add([reading for reading in seen if reading.client_id.startswith("reader")], begin, end)
    context.sleep(1.0, "letting streams end")
    return count


def _answers(process: ReaderProcess) -> int:
    """How many answers have ended, well or not."""
    return sum(1 for each in process.snapshot() if each.closed_at is not None)


def draw(figure: Figure, arms: dict[str, Arm]) -> None:
    """One panel an arm: the share of gaps between tokens that were longer than so many milliseconds."""
    axes = list(figure.subplots(2, 3, sharex=True, sharey=True).flat)
    for axis, (name, arm) in zip(axes, arms.items(), strict=False):
        for label, pace in (("quiet", arm.quiet), ("with never-readers", arm.with_slow)):
            if pace.gaps:
                times, share = cdf(pace.gaps)
                axis.step(times, [1 - each for each in share], where="post", label=label)
        axis.set_title(f"{name.replace('_', ' ')}, {arm.never_readers} never read", fontsize="small")
        axis.set(yscale="log", ylim=(1e-3, 1.2))
    for axis in axes[len(arms) :]:
        axis.set_axis_off()
    axes[0].legend(fontsize="small")
    figure.supxlabel("ms between two tokens")
    figure.supylabel("share of gaps that were longer")
