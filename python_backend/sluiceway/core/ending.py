"""How one stream ends: read to its end, cut, broken off, or detached from its client."""

from __future__ import annotations

from sluiceway.core.commands import (
    AbortGeneration,
    CloseSilently,
    Command,
    Frame,
    ResumeGeneration,
    SendFrame,
    SetWeight,
    SpoolFrame,
)
from sluiceway.core.events import FinishReason
from sluiceway.core.outlet import Outlet
from sluiceway.core.reader import Reader
from sluiceway.core.state_machine import StateMachine
from sluiceway.core.states import State
from sluiceway.core.transitions import Trigger


class Ending:
    """Exactly one FINAL, at most one abort of the engine, and of several reasons to end the first stands.

    FINAL is issued once handed to the pump, and out once that is known to be done. reason: set once FINAL
    is issued. cause: what Envoy or the send path said when the stream broke off, or what made it detach.
    is_resumable: the client may come back, so the answer goes on into the spool.
    """

    def __init__(self, machine: StateMachine, outlet: Outlet, reader: Reader, *, is_resumable: bool) -> None:
        self.reason: FinishReason | None = None
        self.cause = ""
        self.is_engine_done = False
        self.is_resumable = is_resumable
        self._machine = machine
        self._outlet = outlet
        self._reader = reader
        self._forced_reason: FinishReason | None = None
        self._is_abort_asked = self._is_final_out = False

    @property
    def is_final_issued(self) -> bool:
        return self.reason is not None

    @property
    def is_forced(self) -> bool:
        """It was asked to end, by somebody else than its client or its engine."""
        return self._forced_reason is not None

    @property
    def is_complete(self) -> bool:
        """FINAL is out and KV is back."""
        return self.is_engine_done and self._is_final_out

    def finish_engine(self, reason: FinishReason) -> None:
        """The engine is done; what is queued still leaves."""
        self.is_engine_done = True
        self._outlet.finish(reason, complete=True)
        self._machine.move(Trigger.ENGINE_FINISHED)

    def hand_out(self, frame: Frame, commands: list[Command]) -> None:
        """To the client; with the answer's last frame, that is FINAL."""
        self.reason = frame.finish_reason
        commands.append(SendFrame(frame))

    def send_returned(self) -> None:
        """For FINAL too, if it was issued and no send is outstanding."""
        self._is_final_out |= self.is_final_issued and self._outlet.levels.outstanding_sends == 0

    def send_failed(self, detail: str, commands: list[Command]) -> None:
        """As break_off(); if FINAL was under way, that was its one attempt."""
        self.break_off(FinishReason.ERROR, detail, commands)
        self._is_final_out = True

    def break_off(self, reason: FinishReason, cause: str, commands: list[Command]) -> None:
        """Nobody can be told anything any more: FINAL without a response, at once."""
        if self._machine.state is State.DETACHED:
            return
        if self.is_resumable and not self.is_final_issued:
            self._detach(cause, commands, is_gone=True)
            return
        self._end(commands)
        if self.is_final_issued:
            return
        self.reason, self.cause = self._forced_reason or reason, cause
        self._outlet.discard(self.reason)
        self._is_final_out = True
        commands.append(CloseSilently())

    def abort(self, reason: FinishReason, commands: list[Command]) -> None:
        """End the engine's work; what is queued may still leave. Nothing if it ends already."""
        is_over = self.is_final_issued and self._machine.state is not State.DETACHED
        if is_over or self.is_forced:
            return
        self._forced_reason = reason
        self._outlet.finish(reason, complete=False)
        self._end(commands)

    def give_up(self, reason: FinishReason, commands: list[Command]) -> None:
        """The reader takes nothing: let it go if it may come back, else cut."""
        if self.is_resumable:
            self._detach(reason.value, commands, is_gone=False)
        else:
            self.cut(reason, "", commands)

    def cut(self, reason: FinishReason, cause: str, commands: list[Command]) -> None:
        """End at once and say why, window or not: the reader must not take a prefix for the answer."""
        self.cause = cause
        if self._outlet.is_replay:
            # The answer is still in the spool, and its owner may come back once more.
            reason, self.cause = FinishReason.DETACHED, reason.value
        self._end(commands)
        self.hand_out(self._outlet.cut(self._forced_reason or reason), commands)

    def detach(self, cause: str, commands: list[Command]) -> None:
        """Tell the client that its part is over; the answer goes on into the spool."""
        self._detach(cause, commands, is_gone=False)

    def _detach(self, cause: str, commands: list[Command], *, is_gone: bool) -> None:
        """Let the client go; what it has not got, and all that the engine still makes, goes to the spool."""
        must_resume = self._machine.state.is_out_of_batch
        self._machine.move(Trigger.DETACH)
        self.cause = cause
        self.reason = self._forced_reason or FinishReason.DETACHED
        if is_gone:
            self._is_final_out = True
            commands.append(CloseSilently())
        else:
            notice, placeholder = self._outlet.notice(self.reason)
            commands += [SendFrame(notice, is_notice=True), SpoolFrame(placeholder)]
        if must_resume:
            commands.append(ResumeGeneration())
        if not self.is_engine_done and self._reader.leave():
            commands.append(SetWeight(self._reader.weight))

    def _end(self, commands: list[Command]) -> None:
        if not self.is_engine_done and not self._is_abort_asked:
            self._is_abort_asked = True
            commands.append(AbortGeneration())
        self._machine.move(Trigger.ENDED)
