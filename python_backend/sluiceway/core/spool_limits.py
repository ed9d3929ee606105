"""How much the spool may keep, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
    """ttl_s: how long a stream is kept after its client left. max_tombstones: ids remembered as expired."""

    max_stream_bytes: int = 2**20
    max_tenant_bytes: int = 64 * 2**20
    max_bytes: int = 64 * 2**20
    retained_bytes: int = 256 * 1024
    ttl_s: float = 300.0
    max_tombstones: int = 4096
