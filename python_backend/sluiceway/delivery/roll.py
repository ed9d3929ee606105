"""The parent's list of open RPCs, so that a listener's death loses no end. Pure: ``now`` is an argument."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sluiceway.core.record import Record

# Envoy has to connect again before the new listener can hear of anybody, and a client's backoff may outlast
# record_timeout_s: nobody expires because of that wait, but a dead Envoy may not be waited for without end either.
_RECONNECT_TIMEOUTS = 4


class Roll:
    """A new listener reports every RPC that it hears of. Who was open before and is not heard of within
    ``record_timeout_s`` of the first record ended while nobody listened: it expires, as it would have with the
    old listener. Without any record it expires after ``_RECONNECT_TIMEOUTS`` times that.
    """

    def __init__(self, record_timeout_s: float) -> None:
        self._record_timeout_s = record_timeout_s
        self._open: dict[str, Record] = {}
        self._unheard: set[str] = set()
        self._due_at: float | None = None
        self._is_reached = False

    @property
    def open_rpcs(self) -> int:
        return len(self._open)

    def take(self, news: Iterable[Record]) -> None:
        for record in news:
            self._unheard.discard(record.rpc_id)
            if record.ended or record.expired:
                self._open.pop(record.rpc_id, None)
            else:
                self._open[record.rpc_id] = record

    def call(self, now: float) -> None:
        """A new listener listens."""
        self._unheard = set(self._open)
        self._due_at = now + _RECONNECT_TIMEOUTS * self._record_timeout_s
        self._is_reached = False

    def reached(self, now: float) -> None:
        """The listener has had records from Envoy; only the first call counts."""
        if self._due_at is not None and not self._is_reached:
            self._due_at = now + self._record_timeout_s
        self._is_reached = True

    def missing(self, now: float) -> list[Record]:
        """The expiries that are due, each once."""
        if self._due_at is None or now < self._due_at:
            return []
        self._due_at = None
        missing = [replace(self._open.pop(rpc_id), expired=True) for rpc_id in sorted(self._unheard)]
        self._unheard.clear()
        return missing
