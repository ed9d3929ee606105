"""The cliff: stuck readers hold everything, then three people come who read. TTFT against their quiet run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from sluiceway.cli.bench.departures import wait_until_idle
from sluiceway.cli.bench.harness import BenchContext
from sluiceway.cli.bench.pace import Pace
from sluiceway.cli.bench.plans import never_readers, readers
from sluiceway.cli.bench.policy_arms import MACHINE, blocks, config, sized
from sluiceway.cli.bench.readers import ReaderProcess, Reading
from sluiceway.cli.bench.stats import ratio
from sluiceway.cli.stack import Stack

STUCK = 8
STUCK_TOKENS = 2000
NORMAL = 3
NORMAL_TOKENS = 32  # one short answer after the other: many TTFTs


@dataclass(frozen=True, slots=True, kw_only=True)
class Cliff:
    """What runs out. normal_after_s: the people come so long after the stuck ones, when it has run out."""

    name: str
    kv_blocks: int
    max_batch_streams: int
    normal_after_s: float


# Slots: one for each stuck reader, KV for everybody. They are taken at once.
SLOTS = Cliff(name="slots", kv_blocks=4096, max_batch_streams=STUCK, normal_after_s=3.0)
# KV: 300 tokens for each stuck reader, slots for everybody. The blocks are gone after 300 steps of 24 ms.
KV = Cliff(name="kv", kv_blocks=blocks(300 * STUCK), max_batch_streams=32, normal_after_s=9.0)


@dataclass(slots=True)
class Fall:
    """TTFTs in seconds, quiet and with the stuck readers there; with their time since the stuck ones came."""

    quiet: Pace = field(default_factory=Pace)
    stuck: Pace = field(default_factory=Pace)
    curve: list[tuple[float, float]] = field(default_factory=list)
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft_ratio(self) -> float:
        """p99 over p99; a request still without a token counts with the time it had waited."""
        return ratio(self.stuck.ttft_at(99), self.quiet.ttft_at(99)) if self.stuck.ttft else math.inf

    def as_json(self) -> dict[str, Any]:
        return {
            "ttft_p99_ratio": self.ttft_ratio,
            "quiet": self.quiet.figures(),
            "with_stuck": self.stuck.figures(),
            "ttft_s_by_time_since_stuck_came": [[round(at, 2), round(ttft, 4)] for at, ttft in self.curve],
            "engine_when_normal_came": self.engine,
        }


def fall(context: BenchContext, arm: str, cliff: Cliff, *, limit_s: float) -> Fall:
    """``arm`` on a stack of its own; limit_s: how long the people are watched beside the stuck readers."""
    label = f"{arm}, {cliff.name} exhausted"
    machine = sized(MACHINE, kv_blocks=cliff.kv_blocks, max_batch_streams=cliff.max_batch_streams)
    result = Fall()
    with context.stack(f"{arm}-{cliff.name}", config(arm, machine)) as stack:
        _people(context, stack, Pace(), 2.0, f"{label}: warming up")
        _people(context, stack, result.quiet, context.seconds(12, 5), f"{label}: quiet")
        wait_until_idle(stack)
        stuck = ReaderProcess(never_readers(stack.ports.envoy, STUCK, tokens=STUCK_TOKENS))
        try:
            came = _wait_until_open(context, stack)
            context.sleep(max(0.0, cliff.normal_after_s - (time.monotonic() - came)), f"{label}: filling up")
            result.engine = {key: stack.statistics()["engine"][key] for key in ("running", "paused", "kv_blocks_free")}
            readings = _people(context, stack, result.stuck, limit_s, f"{label}: with stuck readers")
            now = time.monotonic()
        finally:
            stuck.stop()
        result.curve = sorted(
            (each.opened_at - came, now - each.opened_at if each.ttft_s is None else each.ttft_s) for each in readings
        )
    context.note(f"{label}: TTFT p99 {result.stuck.ttft_at(99):.2f} s, x{result.ttft_ratio:.1f} of quiet")
    return result


def _wait_until_open(context: BenchContext, stack: Stack) -> float:
    """When all stuck readers' requests were there."""
    context.wait_until(lambda: stack.statistics()["totals"]["open_streams"] >= STUCK, "the stuck readers come")
    return time.monotonic()


def _people(context: BenchContext, stack: Stack, pace: Pace, seconds: float, what: str) -> list[Reading]:
    """Three who read and ask again, for so long; adds what they saw to ``pace``."""
    process = ReaderProcess(readers(stack.ports.envoy, NORMAL, tokens=NORMAL_TOKENS))
    process.snapshot()  # answers once its clients' clocks run
    begin = time.monotonic()
    try:
        context.sleep(seconds, what)
    finally:
        end = time.monotonic()
        readings = process.stop()
    pace.add(readings, begin, end)
    return readings
