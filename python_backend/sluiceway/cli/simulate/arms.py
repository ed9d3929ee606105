"""What is compared: the same machine and trace under different rules for readers that fall behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sluiceway.core.limits import Limits

_FOREVER_S = 1e9
_COMPLETION_BYTES = 1 << 20  # as shipped: what a stuck reader may pile up (spool.max_stream_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """pauses: False runs every answer to completion. heeds_leaving: a client that left ends its request. mode: the
    policy's; without pauses there is nothing to decide but when an answer that nobody reads is given up.
    """

    name: str
    about: str
    pauses: bool = True
    heeds_leaving: bool = True
    mode: Literal["cost", "hold", "drop"] = "hold"
    buffer_aware: bool = False

    def limits(self, shipped: Limits) -> Limits:
        """What becomes of ``shipped``: the arms to compare with know no cushion, two of them pause at nothing else."""
        if self.mode == "cost":
            return shipped
        if self.pauses:
            return replace(shipped, cushion=None)
        if self.heeds_leaving:
            return replace(shipped, cushion=None, pausing=False, max_backlog_bytes=_COMPLETION_BYTES)
        return replace(shipped, cushion=None, pausing=False, max_silence_s=_FOREVER_S, signal_timeout_s=_FOREVER_S)

    @property
    def reclaim(self) -> Literal["any", "none"]:
        """Whether KV of paused streams may be taken by those who need it."""
        return "none" if self.pauses and self.mode == "hold" else "any"


ARMS = {
    arm.name: arm
    for arm in (
        Arm(name="naive", about="generates to the end, also for clients that left", pauses=False, heeds_leaving=False),
        Arm(name="run_to_completion", about="as vLLM: to the end, unless the client leaves", pauses=False),
        Arm(name="hold", about="pauses and keeps KV"),
        Arm(name="drop", about="pauses and drops KV after a fixed time", mode="drop"),
        Arm(name="ours", about="decides by cost, schedules by what is unread", mode="cost", buffer_aware=True),
    )
}
