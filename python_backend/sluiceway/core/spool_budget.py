"""The spool's bytes, by tenant and in all, and how room is made when there are too few."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.core.read_streams import ReadStreams
from sluiceway.core.spool_errors import SpoolFull
from sluiceway.core.spool_limits import SpoolLimits


class SpoolBudget:
    """read: what may go when room is short. forget(stream_id): it has to; gives back what is charged for it."""

    def __init__(self, limits: SpoolLimits, forget: Callable[[str], None]) -> None:
        self.read = ReadStreams()
        self.charged = self.peak_charged = self.granted = self.evicted = 0
        self._limits = limits
        self._forget = forget
        self._tenants: dict[str, int] = {}
        self._grants: dict[str, tuple[str, int]] = {}

    @property
    def free_bytes(self) -> int:
        """What may still be charged, counting answers read to the end as free."""
        return self._limits.max_bytes - self.charged + self.read.bytes

    def make_room(self, tenant: str, more_bytes: int, stream_bytes: int = 0) -> None:
        """Forget read answers until ``more_bytes`` fit. Raises SpoolFull, naming the limit in the way.

        stream_bytes: what the stream that wants them would then have.
        """
        if stream_bytes > self._limits.max_stream_bytes:
            raise SpoolFull("max_stream_bytes", stream_bytes, self._limits.max_stream_bytes)
        while (full := self._tenant_obstacle(tenant, more_bytes)) is not None:
            self._evict(self.read.first(tenant), full)
        while (full := self._obstacle(more_bytes)) is not None:
            self._evict(self.read.first(), full)

    def charge(self, tenant: str, more_bytes: int) -> None:
        """Checks nothing: see make_room(). Negative: give back."""
        self.charged += more_bytes
        self.peak_charged = max(self.peak_charged, self.charged)
        used = self._tenants.get(tenant, 0) + more_bytes
        self._tenants[tenant] = used
        if not used:
            del self._tenants[tenant]

    def grant(self, key: str, tenant: str, granted_bytes: int) -> bool:
        """Charge for what is not kept here but in the process all the same; replaces an earlier grant."""
        self.revoke(key)
        try:
            self.make_room(tenant, granted_bytes)
        except SpoolFull:
            return False
        self._grants[key] = (tenant, granted_bytes)
        self.granted += granted_bytes
        self.charge(tenant, granted_bytes)
        return True

    def revoke(self, key: str) -> None:
        """Give a grant back; unknown keys are ignored."""
        tenant, granted_bytes = self._grants.pop(key, ("", 0))
        self.granted -= granted_bytes
        self.charge(tenant, -granted_bytes)

    def _tenant_obstacle(self, tenant: str, more_bytes: int) -> SpoolFull | None:
        wanted, most = self._tenants.get(tenant, 0) + more_bytes, self._limits.max_tenant_bytes
        return SpoolFull("max_tenant_bytes", wanted, most) if more_bytes > 0 and wanted > most else None

    def _obstacle(self, more_bytes: int) -> SpoolFull | None:
        wanted, most = self.charged + more_bytes, self._limits.max_bytes
        return SpoolFull("max_bytes", wanted, most) if more_bytes > 0 and wanted > most else None

    def _evict(self, stream_id: str | None, full: SpoolFull) -> None:
        if stream_id is None:
            raise full
        self._forget(stream_id)
        self.evicted += 1
