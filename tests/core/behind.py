"""A stream that is behind, and a machine: typical ones, to be changed by keyword."""

from __future__ import annotations

from typing import Any

from sluiceway.core.decision import BehindStream, Load
from sluiceway.core.limits import Size
from sluiceway.core.states import State

TYPICAL_STREAM: dict[str, Any] = {
    "request_id": "r",
    "state": State.PAUSED,
    "backlog": Size(bytes=16_500, tokens=140, frames=9),
    "behind_s": 1.0,
    "silence_s": 0.1,
    "drain_bytes_per_s": 2000.0,
    "resume_bytes": 12_000,
    "tokens_left": 1500,
    "kv_blocks": 40,
    "host_blocks": 0,
    "kv_tokens": 640,
    "spool_bytes_left": 180_000,
}

# KV for twelve streams of 40 blocks, nothing free and one request waiting for it.
TYPICAL_LOAD: dict[str, Any] = {
    "kv_blocks_total": 512,
    "kv_blocks_free": 0,
    "host_blocks_free": 0,
    "batch_streams": 8,
    "batch_free": 24,
    "waiting": 1,
    "longest_wait_s": 0.25,
    "step_s": 0.025,
    "prefill_tokens_per_s": 2000.0,
    "swap_blocks_per_s": 0.0,
    "spool_free_bytes": 1 << 20,
}


def behind(**changes: Any) -> BehindStream:
    return BehindStream(**(TYPICAL_STREAM | changes))


def load(**changes: Any) -> Load:
    return Load(**(TYPICAL_LOAD | changes))
