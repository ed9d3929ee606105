"""The spool's bytes, by tenant and in all, and which streams may go when there are too few."""

from __future__ import annotations

from collections import OrderedDict

from sluiceway.core.spool_errors import SpoolFull


class SpoolBudget:
    """What is charged; checks nothing by itself: see obstacle()."""

    def __init__(self, max_tenant_bytes: int, max_bytes: int) -> None:
        self._max_tenant_bytes = max_tenant_bytes
        self._max_bytes = max_bytes
        self._tenants: dict[str, int] = {}
        self.charged = self.peak_charged = 0

    @property
    def free_bytes(self) -> int:
        return self._max_bytes - self.charged

    def tenant_obstacle(self, tenant: str, more_bytes: int) -> SpoolFull | None:
        """What keeps ``more_bytes`` out, if the tenant's limit does."""
        wanted = self._tenants.get(tenant, 0) + more_bytes
        over = more_bytes > 0 and wanted > self._max_tenant_bytes
        return SpoolFull("max_tenant_bytes", wanted, self._max_tenant_bytes) if over else None

    def obstacle(self, more_bytes: int) -> SpoolFull | None:
        """As tenant_obstacle(), of the process."""
        wanted = self.charged + more_bytes
        over = more_bytes > 0 and wanted > self._max_bytes
        return SpoolFull("max_bytes", wanted, self._max_bytes) if over else None

    def charge(self, tenant: str, more_bytes: int) -> None:
        """Negative: give back."""
        self.charged += more_bytes
        self.peak_charged = max(self.peak_charged, self.charged)
        used = self._tenants.get(tenant, 0) + more_bytes
        self._tenants[tenant] = used
        if not used:
            del self._tenants[tenant]


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
