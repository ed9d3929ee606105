"""Which RPCs are open and what about them is news. Pure: ``now`` is an argument."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from sluiceway.core.record import Record


class TooManyRpcsError(RuntimeError):
    """More unread news than the cap: the parent does not read, and memory must not grow for it."""


class Tracker:
    """Keeps the last record of each open RPC; ``take_news`` answers what changed since it was last asked.

    News of one RPC replace each other (counters are absolute), an end is never replaced, so what is
    unread is bounded by the RPCs it is about. Raises TooManyRpcsError beyond ``max_rpcs``.
    """

    def __init__(self, record_timeout_s: float, max_rpcs: int = 65_536) -> None:
        self._record_timeout_s = record_timeout_s
        self._max_rpcs = max_rpcs
        self._open: OrderedDict[str, tuple[float, Record]] = OrderedDict()  # longest silent first
        self._news: dict[str, Record] = {}
        self.records = 0

    @property
    def open_rpcs(self) -> int:
        return len(self._open)

    def take(self, record: Record, now: float) -> None:
        self.records += 1
        _, last = self._open.pop(record.rpc_id, (now, None))
        if not record.ended:
            self._open[record.rpc_id] = (now, record)
        if record == last:
            return
        waiting = self._news.get(record.rpc_id)
        if waiting is None or not waiting.ended:
            self._news[record.rpc_id] = record
        if len(self._open) > self._max_rpcs or len(self._news) > self._max_rpcs:
            raise TooManyRpcsError(f"more than {self._max_rpcs} RPCs open or unread")

    def expire(self, now: float) -> None:
        """RPCs without a record for record_timeout_s: their end record may be lost."""
        while self._open:
            rpc_id, (seen, record) = next(iter(self._open.items()))
            if now - seen < self._record_timeout_s:
                return
            del self._open[rpc_id]
            self._news[rpc_id] = replace(record, expired=True)

    def take_news(self) -> list[Record]:
        news = list(self._news.values())
        self._news.clear()
        return news
