"""A frozen snapshot of one stream."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.core.events import FinishReason
from sluiceway.core.limits import Size
from sluiceway.core.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderStatistics:
    """Levels are absolute; bytes are wire bytes for frames, text bytes for what is not framed yet.

    backlog = produced - discarded - spooled - delivered (- consumed, for a client that sends acks: then
    delivered says what its library has). discarded: content that was dropped because the
    stream had to end or was replaced. spooled: content that went to the spool alone. finish_reason: set
    once FINAL was handed out. cause: what Envoy or the send path said when the stream broke off, or what
    made it detach, else "". paused_s counts PAUSED, SWAPPED and PREEMPTED. behind_s: since it fell behind
    (running ahead counts). silence_s: since anything was delivered. drain_bytes_per_s: over the last minute
    in which there was something to deliver. run_ahead_bytes: the grant that it has now.
    """

    request_id: str
    state: State
    produced: Size
    sent: Size
    forwarded: Size
    delivered: Size
    consumed: Size
    discarded: Size
    spooled: Size
    backlog: Size
    peak_backlog_bytes: int
    has_signal: bool
    pauses: int
    kv_releases: int
    swaps: int
    run_aheads: int
    run_ahead_bytes: int
    paused_s: float
    behind_s: float
    silence_s: float
    drain_bytes_per_s: float
    weight: float
    is_degraded: bool
    age_s: float
    finish_reason: FinishReason | None
    cause: str
