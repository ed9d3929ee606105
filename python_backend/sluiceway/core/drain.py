"""How fast a client takes what it is given: bytes and tokens a second over a sliding window."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.core.limits import Size

WINDOW_S = 60.0  # longer than any silence the policy allows, so that no steady reader's lump is missed
BUCKETS = 12
KNOWN_AFTER_S = 1.0  # ten records; before that a rate is an accident


@dataclass(slots=True)
class _Bucket:
    bytes: int = 0
    tokens: int = 0
    busy_s: float = 0.0


class DrainRate:
    """Delivered content over the time in which there was something to deliver.

    Time without a backlog does not count: a client cannot take what does not exist, so a stream that
    waits for the engine is not a slow reader. The window is between ``window_s`` and ``window_s`` less one
    bucket long. Every call is O(1) (at most ``buckets`` steps after a long gap), memory is constant.
    Times in seconds on the caller's clock, which must not go back (an earlier ``now`` counts as the last).
    Raises ValueError for a window or a number of buckets that is not positive.
    """

    def __init__(self, now: float, *, window_s: float = WINDOW_S, buckets: int = BUCKETS) -> None:
        if window_s <= 0 or buckets < 1:
            raise ValueError(f"window of {window_s} s in {buckets} buckets: both must be positive")
        self._bucket_s = window_s / buckets
        self._ring = [_Bucket() for _ in range(buckets)]
        self._total = _Bucket()
        self._started_at = self._now = now
        self._index = 0  # of the present bucket, counted from the start
        self._delivered = Size.ZERO
        self._is_busy = False

    def observe(self, delivered: Size, backlog: Size, now: float) -> None:
        """Take the absolute delivered level and what is left to deliver. Call it whenever either changed."""
        self._advance(now)
        present = self._ring[self._index % len(self._ring)]
        for bucket in (present, self._total):
            bucket.bytes += delivered.bytes - self._delivered.bytes
            bucket.tokens += delivered.tokens - self._delivered.tokens
        self._delivered = delivered
        # Bytes and tokens may each be 0 in a backlog that is not empty (an end frame, bytes of half a character).
        self._is_busy = backlog.bytes > 0 or backlog.tokens > 0

    def busy_s(self, now: float) -> float:
        """For how long of the window there was something to deliver."""
        self._advance(now)
        return self._total.busy_s

    def bytes_per_s(self, now: float) -> float:
        """0 also while nothing is known (see is_known)."""
        self._advance(now)
        return self._rate(self._total.bytes)

    def tokens_per_s(self, now: float) -> float:
        """0 also while nothing is known (see is_known)."""
        self._advance(now)
        return self._rate(self._total.tokens)

    def is_known(self, now: float) -> bool:
        """Whether the rates rest on KNOWN_AFTER_S of backlog or more."""
        return self.busy_s(now) >= KNOWN_AFTER_S

    def _rate(self, amount: int) -> float:
        # The first record after a frame comes up to 0.1 s later: shorter times would show absurd rates.
        return amount / max(self._total.busy_s, KNOWN_AFTER_S)

    def _advance(self, now: float) -> None:
        """Move to ``now``: count busy time into the buckets it fell in, forget those that left the window."""
        if now <= self._now:
            return
        last = int((now - self._started_at) / self._bucket_s)
        if last - self._index >= len(self._ring):
            # Everything before is out of the window; only its last stretch can still count.
            for bucket in self._ring:
                bucket.bytes = bucket.tokens = 0
                bucket.busy_s = 0.0
            self._total = _Bucket()
            self._index = last - len(self._ring) + 1
            self._now = max(self._now, self._started_at + self._index * self._bucket_s)
        while self._index < last:
            edge = self._started_at + (self._index + 1) * self._bucket_s
            self._count_busy(edge)
            self._index += 1
            oldest = self._ring[self._index % len(self._ring)]
            self._total.bytes -= oldest.bytes
            self._total.tokens -= oldest.tokens
            self._total.busy_s = max(0.0, self._total.busy_s - oldest.busy_s)
            oldest.bytes = oldest.tokens = 0
            oldest.busy_s = 0.0
        self._count_busy(now)

    def _count_busy(self, until: float) -> None:
        if self._is_busy and until > self._now:
            passed = until - self._now
            self._ring[self._index % len(self._ring)].busy_s += passed
            self._total.busy_s += passed
        self._now = max(self._now, until)
