"""Which RPCs are open and what about them is news. Pure: ``now`` is an argument."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from sluiceway.core.record import Record


class TooMuchNewsError(RuntimeError):
    """More unread ends than the cap: the parent does not read, and memory must not grow for it."""


class Tracker:
    """Keeps the last record of each open RPC; ``take_news`` answers what changed since it was last asked.

    News of one RPC replace each other (counters are absolute), an end is never replaced, so what is unread
    is bounded by the RPCs it is about. Records of RPCs above ``max_rpcs`` are ignored and counted: their
    streams have no signal, which is safe.
    """

    def __init__(self, record_timeout_s: float, max_rpcs: int = 65_536) -> None:
        self._record_timeout_s = record_timeout_s
        self._max_rpcs = max_rpcs
        self._open: OrderedDict[str, tuple[float, Record]] = OrderedDict()  # longest silent first
        self._news: dict[str, Record] = {}
        self._checked_at: float | None = None
        self._deaf_until = float("-inf")
        self.records = 0
        self.ignored = 0

    @property
    def open_rpcs(self) -> int:
        return len(self._open)

    def take(self, record: Record, now: float) -> None:
        """Raises TooMuchNewsError."""
        self.records += 1
        _, last = self._open.pop(record.rpc_id, (now, None))
        if last is None and len(self._open) >= self._max_rpcs:
            self.ignored += 1
            return
        if not record.ended:
            self._open[record.rpc_id] = (now, record)
        if record != last:
            self._post(record)

    def expire(self, now: float) -> None:
        """RPCs without a record for record_timeout_s: their end record may be lost.

        To be asked at least every record_timeout_s / 2. A longer gap means that we ourselves did not
        run; then nobody was heard for a reason of ours, and everybody gets a new timeout.
        """
        if self._checked_at is not None and now - self._checked_at > self._record_timeout_s / 2:
            self._deaf_until = now + self._record_timeout_s
        self._checked_at = now
        while self._open and now >= self._deaf_until:
            rpc_id, (seen, record) = next(iter(self._open.items()))
            if now - seen < self._record_timeout_s:
                return
            del self._open[rpc_id]
            self._post(replace(record, expired=True))

    def take_news(self) -> list[Record]:
        news = list(self._news.values())
        self._news.clear()
        return news

    def _post(self, record: Record) -> None:
        waiting = self._news.get(record.rpc_id)
        if waiting is not None and waiting.ended:
            return
        self._news[record.rpc_id] = record
        if len(self._news) > 2 * self._max_rpcs:
            raise TooMuchNewsError(f"news of more than {2 * self._max_rpcs} RPCs unread")
