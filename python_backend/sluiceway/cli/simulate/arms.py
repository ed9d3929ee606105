"""What is compared: the same machine and trace under different rules for readers that fall behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sluiceway.core.limits import Limits


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

    @property
    def limits(self) -> Limits:
        """As shipped; the arms to compare with know no cushion."""
        return Limits() if self.mode == "cost" else Limits(cushion=None)

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
