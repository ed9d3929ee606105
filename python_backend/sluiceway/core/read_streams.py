"""Which kept answers may go when room is short."""

from __future__ import annotations

from collections import OrderedDict


class ReadStreams:
    """Complete answers that were read to their end, in the order of reading: the first may go first."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._of: dict[str, OrderedDict[str, None]] = {}
        self.bytes = 0

    def add(self, stream_id: str, tenant: str, charged_bytes: int) -> None:
        self.discard(stream_id)
        self._all[stream_id] = (tenant, charged_bytes)
        self._of.setdefault(tenant, OrderedDict())[stream_id] = None
        self.bytes += charged_bytes

    def discard(self, stream_id: str) -> None:
        """It may not go, or is gone; unknown ids are ignored."""
        if stream_id not in self._all:
            return
        tenant, charged_bytes = self._all.pop(stream_id)
        self.bytes -= charged_bytes
        del self._of[tenant][stream_id]
        if not self._of[tenant]:
            del self._of[tenant]

    def first(self, tenant: str | None = None) -> str | None:
        """Of all, or of one tenant."""
        return next(iter(self._all if tenant is None else self._of.get(tenant, ())), None)
