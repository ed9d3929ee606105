"""How likely a stream that is behind is to be read on, and how long that takes: learnt from those before it.

The estimator is the life table (actuarial Kaplan-Meier) with two competing ends, "returned" and "left"
(Aalen and Johansen 1978): on buckets of time, log-spaced since times away span from a tenth of a second
to minutes, the share that ended in a bucket of those who were still away when it began. Streams that we
ended ourselves are censored: they count as away for as long as we watched, half a bucket for the last
(Cutler and Ederer 1958). A prior in each bucket stands in for data at the start, and older streams
count less: each new one fades all counts, with a memory of ``memory`` streams.
"""

from __future__ import annotations

from enum import Enum, auto

from sluiceway.core.costs import Outlook

FIRST_EDGE_S = 0.125
BUCKETS = 14  # the last one begins at 512 s and has no end
PRIOR_RETURNS, PRIOR_LEFT, PRIOR_WEIGHT = 0.4, 0.1, 4.0  # a bucket: 4 of 5 come back, half of them in each doubling


class End(Enum):
    """How being behind ended."""

    RETURNED = auto()  # read on, down to the low watermark
    LEFT = auto()  # the client went away
    CENSORED = auto()  # we ended it, or let it run ahead: what the client would have done is not known


class ReturnEstimator:
    """Memory is constant; learn() and outlook() are O(1). memory: how many streams the estimate rests on."""

    def __init__(self, memory: int = 500) -> None:
        if memory < 1:
            raise ValueError(f"memory of {memory} streams, must be 1 or more")
        self._keep = 1.0 - 1.0 / memory
        self._at_risk = [0.0] * BUCKETS
        self._returned = [0.0] * BUCKETS
        self._left = [0.0] * BUCKETS
        self._table: list[Outlook] | None = None

    def learn(self, away_s: float, end: End) -> None:
        for counts in (self._at_risk, self._returned, self._left):
            for k in range(BUCKETS):
                counts[k] *= self._keep
        last = bucket_of(away_s)
        for k in range(last):
            self._at_risk[k] += 1.0
        self._at_risk[last] += 0.5 if end is End.CENSORED else 1.0
        if end is End.RETURNED:
            self._returned[last] += 1.0
        elif end is End.LEFT:
            self._left[last] += 1.0
        self._table = None

    def outlook(self, away_s: float) -> Outlook:
        """For a stream that has been away for so long already."""
        if self._table is None:
            self._table = self._compute()
        return self._table[bucket_of(away_s)]

    def _compute(self) -> list[Outlook]:
        """From the last bucket back: what happens in this one, and what follows it."""
        table: list[Outlook] = []
        for k in reversed(range(BUCKETS)):
            at_risk = self._at_risk[k] + PRIOR_WEIGHT
            returned = (self._returned[k] + PRIOR_WEIGHT * PRIOR_RETURNS) / at_risk
            left = (self._left[k] + PRIOR_WEIGHT * PRIOR_LEFT) / at_risk
            width = _end_of(k) - _begin_of(k)
            if not table:  # no end: whoever gets here comes back, or leaves, in the ratio seen here
                table.append(Outlook(returned / (returned + left), width))
                continue
            stays = max(0.0, 1.0 - returned - left)
            later = table[-1]
            away_s = (1.0 - stays) * width / 2 + stays * (width + later.away_s)
            table.append(Outlook(returned + stays * later.chance_of_return, away_s))
        return table[::-1]


def bucket_of(away_s: float) -> int:
    """0 below FIRST_EDGE_S, then one for each doubling; the last takes all the rest."""
    k, edge = 0, FIRST_EDGE_S
    while away_s >= edge and k < BUCKETS - 1:
        k, edge = k + 1, 2 * edge
    return k


def _begin_of(k: int) -> float:
    return 0.0 if k == 0 else FIRST_EDGE_S * 2 ** (k - 1)


def _end_of(k: int) -> float:
    return float(FIRST_EDGE_S * 2**k)
