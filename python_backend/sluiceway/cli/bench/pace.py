"""What people who read saw between two moments: time to first token, time between tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluiceway.cli.bench.readers import Reading
from sluiceway.cli.bench.stats import percentile, summary
from sluiceway.core.states import State


@dataclass(slots=True)
class Pace:
    """Seconds. gaps: between neighbouring messages of one answer. Windows of one arm are added up."""

    ttft: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    requests: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, readings: Iterable[Reading], begin: float, end: float) -> Pace:
        """Count requests that began, and gaps that ended, between ``begin`` and ``end`` (monotonic).

        A request or a gap that was still open at ``end`` counts with the time it had lasted by then,
        whenever it began: a stall must not vanish because it outlasted the measurement.
        """
        for reading in readings:
            if reading.error:
                self.errors.append(reading.error)
            self._add_ttft(reading, begin, end)
            self._add_gaps(reading, begin, end)
        return self

    def _add_ttft(self, reading: Reading, begin: float, end: float) -> None:
        ttft, waited = reading.ttft_s, end - reading.opened_at
        if begin <= reading.opened_at < end:
            self.requests += 1
            if ttft is not None:
                self.ttft.append(ttft)
        if ttft is None and waited > STALL_S:
            self.ttft.append(waited)

    def _add_gaps(self, reading: Reading, begin: float, end: float) -> None:
        times = [at for at, tokens in zip(reading.arrivals, reading.token_counts, strict=True) if tokens]
        for before, after in itertools.pairwise(times):
            if begin <= after <= end:
                self.gaps.append(after - before)
        unfinished = not reading.finish_reason and times
        if unfinished and times[-1] <= end - STALL_S:
            self.gaps.append(end - times[-1])

    def figures(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "ttft_ms": summary(self.ttft, scale=1000),
            "tpot_ms": summary(self.gaps, scale=1000),
            "errors": sorted(set(self.errors)),
        }

    def tpot(self, q: float) -> float:
        return percentile(self.gaps, q)

    def ttft_at(self, q: float) -> float:
        return percentile(self.ttft, q)


STALL_S = 0.25  # silence at the end of a window that is more than a step or two


def paused(statistics: dict[str, Any], prefix: str) -> int:
    """How many streams of clients named ``prefix...`` the backend has stopped generating for."""
    return sum(
        1
        for stream in statistics["streams"]
        if (stream["client_id"] or "").startswith(prefix) and State(stream["state"]).is_out_of_batch
    )


def cdf(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Points of the empirical distribution: milliseconds, share."""
    ordered = sorted(values)
    return [1000 * value for value in ordered], [(index + 1) / len(ordered) for index in range(len(ordered))]
