"""One cell of ``bench policy``: one trace against one arm's stack, watched until nobody's answer can change."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluiceway.cli.bench.departures import wait_until_idle
from sluiceway.cli.bench.harness import BenchContext
from sluiceway.cli.bench.policy_clients import name, outcomes, plans
from sluiceway.cli.bench.readers import ReaderProcess
from sluiceway.cli.simulate.figures import Figures, Outcome, Targets, figures
from sluiceway.cli.simulate.trace import Arrival
from sluiceway.cli.stack import Stack

POLL_S = 0.5
IDLE_TIMEOUT_S = 20.0
GAUGES = ("running", "waiting", "paused", "preempted", "swapped", "kv_blocks_free")
COUNTERS = ("steps", "recomputed_tokens", "swap_outs", "swap_ins", "displacements")


@dataclass(slots=True)
class Cell:
    """What one arm did with one trace. samples: engine gauges over time; counters: growth within the cell."""

    figures: Figures
    outcomes: list[Outcome]
    took_s: float
    was_cut: bool
    counters: dict[str, int] = field(default_factory=dict)
    decisions: dict[str, int] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    samples: list[dict[str, float]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return self.figures.as_json() | {
            "took_s": round(self.took_s, 2),
            "was_cut": self.was_cut,
            "generated_tokens": sum(each.generated_tokens for each in self.outcomes),
            "delivered_tokens": sum(each.delivered_tokens for each in self.outcomes),
            **self.counters,
            "decisions": self.decisions,
            "finish_reasons": self.finished,
            "means": {
                gauge: round(sum(each[gauge] for each in self.samples) / len(self.samples), 2)
                for gauge in GAUGES
                if self.samples and gauge in self.samples[0]
            },
        }


def measure(
    context: BenchContext, stack: Stack, trace: Sequence[Arrival], targets: Targets, *, label: str, limit_s: float
) -> Cell:
    """Play ``trace``; over when every normal reader has its answer and every leaver has left, or after ``limit_s``."""
    watch = _Watch(stack, {name(label, index) for index, each in enumerate(trace) if not each.is_slow})
    before = stack.statistics()
    process = ReaderProcess(plans(stack.ports.envoy, trace, label))
    process.snapshot()  # answers once its clients' clocks run
    started = time.monotonic()
    last_event = max(each.arrival_s + (each.leaves_after_s or 0.0) for each in trace)
    deadline = started + limit_s
    while time.monotonic() < deadline:
        context.sleep(POLL_S, f"{label}: {watch.normal_left} normal readers without their answer")
        watch.look()
        if not watch.normal_left and time.monotonic() > started + last_event:
            break
    ended_at, after, missing = time.monotonic(), stack.statistics(), watch.normal_left
    readings = process.stop()
    wait_until_idle(stack, IDLE_TIMEOUT_S)
    watch.look()
    began_at = min((reading.opened_at for reading in readings), default=started) - trace[0].arrival_s
    everybody = outcomes(trace, label, readings, watch.generated, began_at=began_at)
    cell = Cell(
        figures=figures(everybody, targets, ended_at=ended_at, generated=watch.generated_by),
        outcomes=everybody,
        took_s=ended_at - began_at,
        was_cut=missing > 0,
        counters={key: after["engine"][key] - before["engine"][key] for key in COUNTERS if key in after["engine"]},
        decisions=growth(flat(before.get("decisions", {})), flat(after.get("decisions", {}))),
        finished=watch.reasons,
        samples=watch.samples,
    )
    shown = cell.figures
    context.note(
        f"{label}: goodput {shown.goodput:.2f}, TTFT p50 {shown.ttft_p50_s:.2f} p99 {shown.ttft_p99_s:.2f} s, "
        f"{shown.throughput_tokens_per_s:.0f} tokens/s, wasted {shown.wasted_tokens}, took {cell.took_s:.0f} s"
    )
    return cell


def flat(counts: Mapping[str, Any], prefix: str = "") -> dict[str, int]:
    """Counts nested by action and reason, as "action reason"."""
    found: dict[str, int] = {}
    for key, value in counts.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key} ")
        else:
            found[prefix + key] = value
    return found


def growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What was added between two readings of counters that never fall; none that stood still."""
    return {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}


class _Watch:
    """The backend's side of a cell. ``generated``: tokens by client id of those that ended."""

    def __init__(self, stack: Stack, normal: set[str]) -> None:
        self._stack = stack
        self._missing = normal
        self._since = stack.finished(0)["next"]
        self._start = stack.statistics()
        self.generated: dict[str, int] = {}
        self.reasons: dict[str, int] = {}
        self.samples: list[dict[str, float]] = []
        self.generated_by: list[tuple[float, int]] = []

    @property
    def normal_left(self) -> int:
        return len(self._missing)

    def look(self) -> None:
        statistics = self._stack.statistics()
        engine = statistics["engine"]
        made = engine["generated_tokens"] - self._start["engine"]["generated_tokens"]
        self.generated_by.append((statistics["now"], made))
        self.samples.append({"at": statistics["now"]} | {key: engine[key] for key in GAUGES if key in engine})
        page = self._stack.finished(self._since)
        self._since = page["next"]
        for entry in page["finished"]:
            self._missing.discard(entry["client_id"])
            self.generated[entry["client_id"]] = entry["produced_tokens"]
            self.reasons[entry["finish_reason"]] = self.reasons.get(entry["finish_reason"], 0) + 1
