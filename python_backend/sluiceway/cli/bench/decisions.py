"""``bench decisions``: what the policy costs the driver in each engine step, with 10,000 streams behind.

Real senders, paused and never read, described as the driver does it; the clock is made up, so a step is
as long as it takes and the figures are CPU time of this thread (other work on the machine counts little).
Each step, some streams come back and others fall behind; the machine has nothing to spare, so that every
action is weighed. Decisions are obeyed, and streams that end make room for new ones.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from sluiceway.cli.bench.harness import BenchContext, ScenarioResult
from sluiceway.cli.bench.promise import Promise
from sluiceway.cli.bench.stats import percentile
from sluiceway.core.behind import describe
from sluiceway.core.decision import BehindStream, Load
from sluiceway.core.events import Decided, TokensProduced
from sluiceway.core.limits import Limits
from sluiceway.core.policy import Policy
from sluiceway.core.record import Record
from sluiceway.core.reviews import Reviews
from sluiceway.core.sender import BoundedSender
from sluiceway.core.window import DeliveryWindow

STREAMS = 10_000
STEP_S = 0.025
CHURN = 8  # streams that come back in a step, and as many that fall behind
PROMPT_TOKENS = 64
BLOCK_TOKENS = 16
LIMITS = Limits()


@dataclass(slots=True)
class _Costs:
    """CPU seconds of each step; what was decided."""

    review_s: list[float] = field(default_factory=list)
    churn_s: list[float] = field(default_factory=list)
    decided: Counter[str] = field(default_factory=Counter)


class _Crowd:
    """The streams that are behind, oldest first."""

    def __init__(self) -> None:
        self.senders: dict[str, tuple[BoundedSender, int]] = {}
        self._made = 0

    def add(self, now: float) -> str:
        """A stream that has just been paused, with 50 to 4,000 tokens to go."""
        self._made += 1
        request_id = f"r{self._made}"
        window = DeliveryWindow(LIMITS.window)
        window.open(request_id)
        window.observe(Record(request_id, messages=0, body_bytes=0, wire_bytes=0))
        sender = BoundedSender(request_id, LIMITS, window, now, resumable=self._made % 2 == 0)
        while not sender.is_behind:
            sender.handle(TokensProduced((1,) * 16, b"x" * 64), now)
        produced = sender.statistics(now).produced.tokens
        self.senders[request_id] = sender, produced + 50 + self._made * 37 % 3950
        return request_id

    def pop_oldest(self) -> str:
        request_id = next(iter(self.senders))
        del self.senders[request_id]
        return request_id

    def describe(self, request_id: str, now: float) -> BehindStream | None:
        if (found := self.senders.get(request_id)) is None:
            return None
        sender, max_tokens = found
        return describe(
            sender,
            LIMITS,
            now,
            prompt_tokens=PROMPT_TOKENS,
            max_tokens=max_tokens,
            kv_block_tokens=BLOCK_TOKENS,
        )


def _load() -> Load:
    return Load(
        kv_blocks_total=24 * STREAMS,
        kv_blocks_free=100,
        host_blocks_free=12 * STREAMS,
        batch_streams=200,
        batch_free=56,
        waiting=50,
        longest_wait_s=0.5,
        step_s=STEP_S,
        prefill_tokens_per_s=50_000.0,
        swap_blocks_per_s=20_000.0,
        spool_free_bytes=64 << 20,
    )


def measure(streams: int, steps: int) -> _Costs:
    """``steps`` engine steps with ``streams`` behind at each."""
    now, load, costs = 1000.0, _load(), _Costs()
    crowd, reviews = _Crowd(), Reviews(Policy())
    for _ in range(streams):
        reviews.add(crowd.add(now), now)
    gc.collect()
    gc.freeze()  # ten thousand senders are the scene, not the cost that is measured
    try:
        for _ in range(steps):
            now += STEP_S
            arrived = [crowd.add(now) for _ in range(streams - len(crowd.senders) + CHURN)]
            left = [crowd.pop_oldest() for _ in range(CHURN)]
            began = time.thread_time()
            for request_id in left:
                reviews.remove(request_id, now, returned=True)
            for request_id in arrived:
                reviews.add(request_id, now)
            changed = time.thread_time()
            decided = reviews.review(now, load, lambda request_id: crowd.describe(request_id, now))  # noqa: B023
            costs.review_s.append(time.thread_time() - changed)
            costs.churn_s.append(changed - began)
            for request_id, decision in decided:
                costs.decided[f"{decision.action}: {decision.reason}"] += 1
                sender, _ = crowd.senders[request_id]
                sender.handle(Decided(decision), now)
                if not sender.is_behind:
                    del crowd.senders[request_id]
                    reviews.remove(request_id, now, returned=False)
    finally:
        gc.unfreeze()
    return costs


def run(context: BenchContext) -> ScenarioResult:
    steps = context.count(4000, 1000)
    arms: dict[str, Any] = {}
    taken: dict[int, list[float]] = {}
    for streams in (100, 1000, STREAMS):
        context.note(f"{streams} streams behind, {steps} steps")
        costs = measure(streams, steps)
        whole = [review + churn for review, churn in zip(costs.review_s, costs.churn_s, strict=True)]
        taken[streams] = whole
        arms[f"behind_{streams}"] = {
            "steps": steps,
            "decision_ms_per_step_mean": round(1000 * sum(whole) / steps, 4),
            "decision_ms_per_step_p50": round(1000 * percentile(whole, 50), 4),
            "decision_ms_per_step_p99": round(1000 * percentile(whole, 99), 4),
            "decision_ms_per_step_max": round(1000 * max(whole), 4),
            "decided": dict(costs.decided.most_common()),
        }
    largest = arms[f"behind_{STREAMS}"]
    return ScenarioResult(
        settings={"streams": STREAMS, "step_s": STEP_S, "churn_per_step": CHURN, "reviews": "as shipped"},
        arms=arms,
        promises=[
            Promise.at_most("decision_ms_per_step", largest["decision_ms_per_step_mean"], 1.0, "ms"),
            Promise.at_most("decision_ms_per_step_p99", largest["decision_ms_per_step_p99"], 2.0, "ms"),
        ],
        plot=lambda figure: _plot(figure, taken),
    )


def _plot(figure: Figure, taken: dict[int, list[float]]) -> None:
    axes = figure.subplots()
    for streams, seconds in taken.items():
        ordered = sorted(1000 * each for each in seconds)
        axes.plot(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], label=f"{streams} behind")
    axes.axvline(1.0, color="grey", linestyle=":")
    axes.set(xlabel="CPU time of the policy in one step, ms", ylabel="share of steps", title="Decisions")
    axes.legend()
