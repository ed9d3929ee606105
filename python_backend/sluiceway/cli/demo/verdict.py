"""From what was seen to promises, a summary and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from sluiceway.cli.bench.harness import ScenarioResult
from sluiceway.cli.bench.promise import Promise
from sluiceway.cli.bench.readers import Reading
from sluiceway.cli.bench.stats import percentile, ratio, summary
from sluiceway.cli.demo.cast import STUCK, VANISHING

# Limits of the demo, not of the product: two cores compute the model, run the servers and the readers, and
# the two readers at 1 KB/s are served all the time. `bench isolation` has the strict ones.
TPOT_RATIO = 1.5
TTFT_RATIO = 2.0
KV_FREE_MS = 1000.0
GROWTH_MIB = 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Answers of the normal readers by phase; snapshots of /statistics; entries of /finished by name."""

    before: Sequence[Reading]
    arriving: Sequence[Reading]
    during: Sequence[Reading]
    after: Sequence[Reading]
    start: Mapping[str, Any]
    crowded: Mapping[str, Any]
    end: Mapping[str, Any]
    rss_before: int
    rss_during: int
    vanished_at: float
    finished: Mapping[str, Mapping[str, Any]]

    @property
    def quiet(self) -> list[Reading]:
        """Before and after together, so that a machine that drifts is no argument."""
        return [*self.before, *self.after]

    @property
    def stuck(self) -> list[Mapping[str, Any]]:
        names = {role.name for role in STUCK}
        return [stream for stream in self.crowded["streams"] if stream["client_id"] in names]

    @property
    def wasted_tokens(self) -> int:
        """Made for the one that vanished, after it had."""
        return sum(at > self.vanished_at for at in self.finished[VANISHING.name]["token_times"])

    @property
    def kv_free_ms(self) -> float:
        freed = self.finished[VANISHING.name]["t_kv_free"]
        return math.nan if freed is None else (freed - self.vanished_at) * 1000

    @property
    def growth_mib(self) -> float:
        return (self.rss_during - self.rss_before) / 2**20


def tpots(answers: Sequence[Reading]) -> list[float]:
    return [tpot for answer in answers if (tpot := answer.tpot_s()) is not None]


def ttfts(answers: Sequence[Reading]) -> list[float]:
    return [ttft for answer in answers if (ttft := answer.ttft_s) is not None]


def incomplete(answers: Sequence[Reading]) -> int:
    return sum(answer.finish_reason not in ("stop", "length") for answer in answers)


def verdict(evidence: Evidence, config: Mapping[str, Any]) -> ScenarioResult:
    high = config["flow_control"]["high"]["tokens"]
    everything = [*evidence.quiet, *evidence.arriving, *evidence.during]
    stuck = evidence.stuck
    # One step's tokens may be under way when the pause is asked for.
    backlog = max((stream["backlog"]["tokens"] for stream in stuck), default=math.nan)
    paused = sum(stream["state"] in ("paused", "preempted") for stream in stuck)
    leaked = evidence.start["engine"]["kv_blocks_free"] - evidence.end["engine"]["kv_blocks_free"]
    promises = [
        Promise.at_most("normal_tpot_p50_ratio", _ratio(tpots(evidence.during), tpots(evidence.quiet)), TPOT_RATIO, ""),
        Promise.at_most("normal_ttft_p50_ratio", _ratio(ttfts(evidence.during), ttfts(evidence.quiet)), TTFT_RATIO, ""),
        Promise.exactly("normal_answers_incomplete", incomplete(everything), 0, "answers"),
        Promise.exactly("stuck_readers_paused", paused, len(STUCK), "streams"),
        Promise.at_most("stuck_backlog_tokens_max", backlog, high + 8, "tokens"),
        Promise.exactly("stuck_kv_blocks", sum(stream["kv_blocks"] for stream in stuck), 0, "blocks"),
        Promise.at_most("vanished_wasted_tokens", evidence.wasted_tokens, 8, "tokens"),
        Promise.at_most("vanished_kv_free_ms", evidence.kv_free_ms, KV_FREE_MS, "ms"),
        Promise.exactly("leaked_blocks", leaked, 0, "blocks"),
        Promise.at_most("memory_growth_mib", evidence.growth_mib, GROWTH_MIB, "MiB"),
    ]
    phases = {
        name: _figures(answers)
        for name, answers in (
            ("quiet", evidence.quiet),
            ("quiet_before", evidence.before),
            ("crowd_arriving", evidence.arriving),
            ("crowd", evidence.during),
            ("quiet_after", evidence.after),
        )
    }
    arms = {**phases, "streams_of_the_crowd": evidence.crowded["streams"], "totals": evidence.end["totals"]}
    return ScenarioResult(settings=dict(config), arms=arms, promises=promises)


def _ratio(values: Sequence[float], reference: Sequence[float]) -> float:
    return ratio(percentile(values, 50), percentile(reference, 50))


def _figures(answers: Sequence[Reading]) -> dict[str, Any]:
    gaps = [gap for answer in answers for gap in answer.gaps_s()]
    return {
        "answers": len(answers),
        "ttft_ms": summary(ttfts(answers), scale=1000),
        "tpot_ms": summary(tpots(answers), scale=1000),
        "gap_ms": summary(gaps, scale=1000),
    }


def show(console: Console, evidence: Evidence, result: ScenarioResult) -> None:
    """The summary for people."""
    if evidence.during:
        answer = max(evidence.during, key=lambda each: len(each.text))
        console.print("\n[bold]One answer, read while the crowd was there[/]")
        console.print(answer.text.strip(), markup=False, highlight=False)
    console.print(_phases(result))
    report_line = (
        f"Memory of all processes {evidence.rss_before / 2**20:.0f} MiB without the crowd, "
        f"{evidence.rss_during / 2**20:.0f} MiB with it. KV held by the six that never read: "
        f"{sum(stream['kv_blocks'] for stream in evidence.stuck)} blocks. Made for the one that vanished after it "
        f"had: {evidence.wasted_tokens} tokens; its KV was free {evidence.kv_free_ms:.0f} ms later."
    )
    console.print(report_line, highlight=False)
    console.print(
        "Measured is the time after the six had used up what every reader is given on trust and were paused; "
        "while they arrive (shown above) all of them share the batch. The two at 1 KB/s do read, so they are "
        f"served all along. On two cores that is why the demo allows a TPOT ratio of {TPOT_RATIO:g} and a TTFT "
        f"ratio of {TTFT_RATIO:g}; `sluiceway bench isolation` holds 1.10 and 1.15 with a paced engine.",
        style="dim",
    )


def _phases(result: ScenarioResult) -> Table:
    drawn = Table(title="Three normal readers")
    for column in ("when", "answers", "TTFT p50 ms", "TTFT max ms", "TPOT p50 ms", "longest gap ms"):
        drawn.add_column(column, justify="left" if column == "when" else "right")
    for name in ("quiet_before", "crowd_arriving", "crowd", "quiet_after"):
        figures = result.arms[name]
        ttft, tpot, gap = (figures[key] for key in ("ttft_ms", "tpot_ms", "gap_ms"))
        cells = (ttft.get("p50"), ttft.get("max"), tpot.get("p50"), gap.get("max"))
        drawn.add_row(
            name.replace("_", " "),
            str(figures["answers"]),
            *("-" if cell is None else f"{cell:.0f}" for cell in cells),
        )
    return drawn
