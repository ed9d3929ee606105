"""The spool's ledger and its copy in Redis, if there is one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.core.spool import Spool
from sluiceway.core.spool_limits import SpoolLimits
from sluiceway.core.spool_record import pack
from sluiceway.runtime.spool_writer import SpoolWriter

_TRIM_FRAMES = 64  # Redis forgets in steps of so many
_REFRESHES_A_TTL = 3


class MirroredSpool:
    """``spool`` is for reading; what changes it goes through here. Raises what the ledger raises."""

    def __init__(self, limits: SpoolLimits, writer: SpoolWriter | None) -> None:
        self.spool = Spool(limits)
        self._ttl_s = limits.ttl_s
        self._writer = writer
        self._trimmed: dict[str, int] = {}  # what Redis was told of each stream
        self._refresh_at = 0.0

    def open(self, stream_id: str, tenant: str, floor_bytes: int) -> None:
        self.spool.open(stream_id, tenant, floor_bytes)
        if self._writer is not None:
            self._writer.begin(stream_id, tenant)

    def append(self, stream_id: str, frame: Frame) -> None:
        self.spool.append(stream_id, frame)
        self._copy(stream_id, frame)

    def cut(self, stream_id: str, reason: FinishReason) -> None:
        self._copy(stream_id, self.spool.cut(stream_id, reason))

    def confirm(self, stream_id: str, sequence: int) -> None:
        self.spool.confirm(stream_id, sequence)
        if self._writer is None:
            return
        first = self.spool.first_sequence(stream_id)
        if first >= self._trimmed.get(stream_id, 0) + _TRIM_FRAMES:
            self._trimmed[stream_id] = first
            self._writer.trim(stream_id, first)

    def remove(self, stream_id: str) -> None:
        self.spool.remove(stream_id)
        self._forget(stream_id)

    def expire(self, now: float) -> list[str]:
        """Also tells Redis what is still kept: it would forget it otherwise."""
        expired = self.spool.expire(now)
        for stream_id in expired:
            self._forget(stream_id)
        if self._writer is not None and now >= self._refresh_at:
            self._refresh_at = now + self._ttl_s / _REFRESHES_A_TTL
            self._writer.refresh(self.spool)
            self._trimmed = {each: first for each, first in self._trimmed.items() if each in self.spool}
        return expired

    def statistics(self) -> dict[str, Any]:
        redis = None if self._writer is None else asdict(self._writer.statistics())
        return asdict(self.spool.totals()) | {"redis": redis}

    def _copy(self, stream_id: str, frame: Frame) -> None:
        if self._writer is not None:
            self._writer.keep(stream_id, frame.sequence, pack(frame))

    def _forget(self, stream_id: str) -> None:
        self._trimmed.pop(stream_id, None)
        if self._writer is not None:
            self._writer.forget(stream_id)
