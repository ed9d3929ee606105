"""A frozen snapshot of one stream."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.core.events import FinishReason
from sluiceway.core.limits import Size
from sluiceway.core.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderStatistics:
    """Levels are absolute; bytes are wire bytes for frames, text bytes for what is not framed yet.

    backlog = produced - discarded - delivered. discarded: content that was dropped because the stream
    had to end. finish_reason: set once FINAL was handed out. cause: what Envoy or the send path said
    when the stream broke off, else "". paused_s counts both PAUSED and PREEMPTED.
    """

    request_id: str
    state: State
    produced: Size
    sent: Size
    forwarded: Size
    delivered: Size
    discarded: Size
    backlog: Size
    peak_backlog_bytes: int
    has_signal: bool
    pauses: int
    kv_releases: int
    paused_s: float
    age_s: float
    finish_reason: FinishReason | None
    cause: str
