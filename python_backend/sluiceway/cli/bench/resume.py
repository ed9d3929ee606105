"""``bench resume``: clients that vanish at a random frame and come back get exactly the rest.

In one replica, and between two that share a Redis. What a client has is what its application has read: the
rest of the old connection, whatever buffers it lies in, is thrown away.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from matplotlib.figure import Figure

from sluiceway.cli.bench.departures import wait_until_idle
from sluiceway.cli.bench.harness import BenchContext, ScenarioResult
from sluiceway.cli.bench.promise import Promise
from sluiceway.cli.bench.readers import (
    ConnectionSettings,
    Leave,
    Normal,
    Rate,
    ReaderLoop,
    Reading,
    ReadingPolicy,
    StopAfter,
    Stream,
    StreamRequest,
)
from sluiceway.cli.bench.reference import Answer, scripted
from sluiceway.cli.redis import RedisServer
from sluiceway.cli.stack import Stack

TOKENS = 240
CLIENTS = 12  # at once
SEED = 3
FRAME_TIMEOUT_S = 30.0
END_TIMEOUT_S = 60.0
PROMPTS = ("river", "日本語で、川", "A flag 🏳️‍🌈", "kettle")
# SILENT: the old connection stays open and looks alive. The client comes back all the same.
WAYS = (Leave.RST_STREAM, Leave.FIN, Leave.TCP_RST, Leave.SILENT)
POLICIES: tuple[ReadingPolicy, ...] = (Normal(), Normal(), Rate(4000), StopAfter(0))
CONFIG: dict[str, Any] = {
    "engine": {"kind": "scripted", "step_s": 0.01, "script": "unicode", "max_batch_streams": 64},
    # Small, so that stuck readers are paused and dropped before they vanish.
    "flow_control": {
        "window": {"bytes": 4096, "tokens": 64, "frames": 16},
        "high": {"bytes": 4096, "tokens": 48, "frames": 48},
        "low": {"bytes": 1024, "tokens": 12, "frames": 12},
        "merge_frames": 4,
        "max_frame_bytes": 1024,
    },
}
SAMPLING = {"temperature": 0, "ignore_eos": True}


@dataclass(kw_only=True)
class Round:
    """One answer, read in pieces. problem: "" if the pieces make the reference. resume_s: until the first frame
    after each return.
    """

    number: int
    ways: list[str] = field(default_factory=list)
    left_after: list[int] = field(default_factory=list)
    resume_s: list[float] = field(default_factory=list)
    finish_reason: str = ""
    problem: str = ""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    frames: list[tuple[int, int]] = field(default_factory=list)

    @property
    def next_frame(self) -> int:
        return self.frames[-1][0] + 1 if self.frames else 0

    def take(self, reading: Reading) -> None:
        """What the application has of a connection."""
        self.text += reading.text
        self.token_ids += reading.token_ids
        self.frames += reading.frames
        self.finish_reason = reading.finish_reason

    def compare(self, reference: Answer) -> None:
        sequences = [sequence for sequence, _ in self.frames]
        if sequences != list(range(len(sequences))):
            self.problem = "frame numbers have gaps or come twice"
        elif tuple(self.token_ids) != reference.token_ids:
            self.problem = "token ids differ"
        elif self.text != reference.text:
            self.problem = "text differs"
        elif self.finish_reason != "length":
            self.problem = f"finish reason {self.finish_reason!r}"

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        for name in ("text", "token_ids", "frames"):
            del fields[name]
        return fields | {"frames": len(self.frames)}


def run(context: BenchContext) -> ScenarioResult:
    rounds = context.count(200, 20)
    arms: dict[str, Any] = {}
    with context.stack("resume", CONFIG) as stack:
        arms["same_process"] = _arm(context, "same process", [stack], rounds)
    with RedisServer(context.run_dir / "redis") as server:
        shared = CONFIG | {"spool": {"redis": {"url": server.url}}}
        with context.stack("replica-a", shared) as one, context.stack("replica-b", shared) as other:
            arms["other_replica"] = _arm(context, "other replica", [one, other], rounds)
    promises = []
    for name, arm in arms.items():
        mismatches = sum(bool(each["problem"]) for each in arm["rounds"])
        promises.append(Promise.exactly(f"resume_mismatches_{name}", mismatches, 0, "answers"))
        promises.append(Promise.at_least(f"resume_rounds_{name}", len(arm["rounds"]), rounds, "answers"))
        promises.append(Promise.exactly(f"kv_blocks_leaked_{name}", arm["kv_blocks_leaked"], 0, "blocks"))
    settings = {"config": CONFIG, "tokens": TOKENS, "rounds": rounds, "clients": CLIENTS, "seed": SEED}
    return ScenarioResult(settings=settings, arms=arms, promises=promises, plot=lambda figure: _plot(figure, arms))


def _arm(context: BenchContext, what: str, stacks: Sequence[Stack], rounds: int) -> dict[str, Any]:
    context.note(f"{what}: {rounds} answers of {TOKENS} tokens, {CLIENTS} clients at once, each vanishes and returns")
    references = dict(zip(PROMPTS, scripted(CONFIG, PROMPTS, TOKENS), strict=True))
    began = time.monotonic()
    with ReaderLoop() as loop, ThreadPoolExecutor(CLIENTS) as clients:
        done = list(clients.map(lambda number: play(loop, stacks, number, references), range(rounds)))
    idle = [wait_until_idle(stack, timeout_s=20.0) for stack in stacks]
    leaked = sum(each["engine"]["kv_blocks_total"] - each["engine"]["kv_blocks_free"] for each in idle)
    for each in done:
        if each.problem:
            context.note(f"[red]{what}, answer {each.number}:[/] {each.problem}; left by {each.ways}")
    return {
        "took_s": round(time.monotonic() - began, 1),
        "kv_blocks_leaked": leaked,
        "spool": [each["spool"] for each in idle],
        "rounds": [each.as_json() for each in done],
    }


def play(loop: ReaderLoop, stacks: Sequence[Stack], number: int, references: dict[str, Answer]) -> Round:
    """Ask, vanish once or twice at a random frame, come back (to the next replica in turn), read to the end."""
    dice = random.Random(SEED * 10_007 + number)
    prompt = PROMPTS[number % len(PROMPTS)]
    result = Round(number=number)
    request = StreamRequest(
        prompt=prompt, max_tokens=TOKENS, sampling=SAMPLING, client_id=f"answer-{number}", resumable=True
    )
    try:
        for part in range(dice.randint(1, 2)):
            stream = _open(loop, stacks[part % len(stacks)], request, dice.choice(POLICIES))
            _wait_for_frames(stream, 1 + dice.randrange(40))
            if stream.ended:
                break
            way = dice.choice(WAYS)
            loop.leave(stream, way)
            result.ways.append(way.value)
            stream_id = stream.reading.stream_id
            if stream.reading.finish_reason:  # nothing is left to come back for
                break
            result.take(stream.reading)
            result.left_after.append(result.next_frame)
            time.sleep(dice.choice((0.0, 0.0, 0.2, 1.0)))
            request = StreamRequest(
                prompt="", client_id=f"answer-{number}-{part}", resume=(stream_id, result.next_frame)
            )
        else:
            stream = _open(loop, stacks[(part + 1) % len(stacks)], request, Normal())
        if not stream.reading.finish_reason and not stream.wait(END_TIMEOUT_S):
            raise TimeoutError(f"no end within {END_TIMEOUT_S:g} s")
        if stream.reading.error:
            raise RuntimeError(stream.reading.error)
        if stream.reading.arrivals:
            result.resume_s.append(stream.reading.arrivals[0] - stream.reading.opened_at)
        result.take(stream.reading)
        result.compare(references[prompt])
    except (OSError, RuntimeError) as error:
        result.problem = f"{type(error).__name__}: {error}"
    return result


def _open(loop: ReaderLoop, stack: Stack, request: StreamRequest, policy: ReadingPolicy) -> Stream:
    window = 4096 if isinstance(policy, StopAfter) else 65_535
    return loop.open(loop.connect(ConnectionSettings(port=stack.ports.envoy, stream_window=window)), request, policy)


def _wait_for_frames(stream: Stream, frames: int) -> None:
    """Until the client has so many, or no more come: a stuck one stops before."""
    deadline = time.monotonic() + FRAME_TIMEOUT_S
    quiet_at = time.monotonic() + 2.0
    seen = 0
    while len(stream.reading.frames) < frames and not stream.ended:
        if len(stream.reading.frames) > seen:
            seen, quiet_at = len(stream.reading.frames), time.monotonic() + 2.0
        if seen and time.monotonic() > quiet_at:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"no frame within {FRAME_TIMEOUT_S:g} s")
        time.sleep(0.005)


def _plot(figure: Figure, arms: dict[str, Any]) -> None:
    axes = figure.subplots()
    for name, arm in arms.items():
        times = sorted(second for each in arm["rounds"] for second in each["resume_s"])
        if times:
            axes.plot(times, [(n + 1) / len(times) for n in range(len(times))], label=name.replace("_", " "))
    axes.set_xlabel("seconds from coming back to the first frame")
    axes.set_ylabel("share of clients")
    axes.set_xlim(left=0)
    axes.legend()
