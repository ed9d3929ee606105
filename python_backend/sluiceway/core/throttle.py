"""Whether the engine generates for one stream.

Paused above high or with plenty unread, resumed at low with little unread, and what is decided in between.
"""

from __future__ import annotations

from sluiceway.core.commands import (
    Command,
    PauseGeneration,
    ReleaseKv,
    ReplaceGeneration,
    ResumeGeneration,
    SwapOut,
)
from sluiceway.core.decision import Action, Decision
from sluiceway.core.limits import Limits, Size
from sluiceway.core.pauses import Pauses
from sluiceway.core.state_machine import StateMachine
from sluiceway.core.states import State
from sluiceway.core.transitions import Trigger
from sluiceway.core.watermark import Watermark


class Throttle:
    """Times in seconds on the caller's clock. Raises ValueError for watermarks that contradict themselves.

    is_degraded: a short answer took the place of the one that was asked for; too short to be paused.
    """

    def __init__(self, machine: StateMachine, limits: Limits) -> None:
        self.pauses = Pauses()
        self.is_degraded = False
        self._machine = machine
        self._watermark = Watermark(*limits.marks)

    @property
    def run_ahead_bytes(self) -> int:
        """What it may hold beyond its limits; 0 once the backlog is at low again, and without a client."""
        granted_bytes = self._watermark.granted_bytes
        return granted_bytes if self._machine.state not in (State.DETACHED, State.FINISHED) else 0

    def update(self, backlog: Size, *, has_plenty: bool, is_known: bool, now: float, commands: list[Command]) -> None:
        """Pause or resume. is_known: the backlog says something of the reader; has_plenty: it will last it a while."""
        is_above = self._watermark.update(backlog)
        state = self._machine.state
        if is_above or (has_plenty and not self._watermark.granted_bytes):
            if state is State.STREAMING and is_known and not self.is_degraded:
                self._machine.move(Trigger.ABOVE_HIGH)
                self.pauses.begin(now)
                commands.append(PauseGeneration())
        elif state.is_out_of_batch:
            self._machine.move(Trigger.AT_LOW)
            commands.append(ResumeGeneration())

    def obey(self, decision: Decision, backlog: Size, commands: list[Command]) -> None:
        """SWAP, DROP and RUN_AHEAD. One that no longer fits does nothing: the reader may have come back."""
        state = self._machine.state
        match decision.action:
            case Action.SWAP if state is State.PAUSED:
                self._machine.move(Trigger.SWAP)
                self.pauses.swaps += 1
                commands.append(SwapOut())
            case Action.DROP if state in (State.PAUSED, State.SWAPPED):
                self._machine.move(Trigger.DROP)
                self.pauses.kv_releases += 1
                commands.append(ReleaseKv())
            case Action.RUN_AHEAD if state.is_out_of_batch:
                self._machine.move(Trigger.RUN_AHEAD)
                self.pauses.run_aheads += 1
                self._watermark.grant(decision.run_ahead_bytes, backlog)
                commands.append(ResumeGeneration())

    def replace(self, commands: list[Command]) -> None:
        """A short answer comes in place of the long one, and is generated at once."""
        self._machine.move(Trigger.REPLACE)
        self.is_degraded = True
        commands.append(ReplaceGeneration())
