"""What the spool as a whole holds and has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolTotals:
    """used_bytes: frames kept. charged_bytes: with what is reserved. Counters never fall."""

    streams: int
    complete: int
    used_bytes: int
    charged_bytes: int
    peak_charged_bytes: int
    free_bytes: int
    granted_bytes: int
    expired: int
    evicted: int
    refused: int
