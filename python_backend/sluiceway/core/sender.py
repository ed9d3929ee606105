"""One stream between the engine and the response pump: what to send when, and when to pause the engine.

The transitions are the table in transitions.py; the policy is docs/flow-control.md. Whoever owns the
window opens and closes the request there.
"""

from __future__ import annotations

from sluiceway.core.commands import (
    AbortGeneration,
    CloseSilently,
    Command,
    Frame,
    PauseGeneration,
    ReleaseKv,
    ReplaceGeneration,
    ResumeGeneration,
    SendFrame,
    SetWeight,
    SpoolFrame,
    StreamClosed,
    SwapOut,
)
from sluiceway.core.deadlines import Deadlines, Due
from sluiceway.core.decision import Action, Decision
from sluiceway.core.events import (
    AbortRequested,
    ClientGone,
    DeadlineReached,
    Decided,
    EngineFinished,
    Event,
    FinishReason,
    FrameReplayed,
    FrameSent,
    Progress,
    SendFailed,
    SignalLost,
    TokensProduced,
)
from sluiceway.core.limits import Limits, Size
from sluiceway.core.outlet import Outlet
from sluiceway.core.pauses import Pauses
from sluiceway.core.reader import Reader
from sluiceway.core.states import State
from sluiceway.core.statistics import SenderStatistics
from sluiceway.core.transitions import TRANSITIONS, IllegalEventError, Trigger, refuse_by_state
from sluiceway.core.watermark import Watermark
from sluiceway.core.window import FrameWindow

_NATURAL = (FinishReason.STOP, FinishReason.LENGTH)
_BREAKS = {
    Due.DRAIN: FinishReason.STALLED,  # an abort's own reason stands
    Due.SILENCE: FinishReason.STALLED,
    Due.SIGNAL: FinishReason.NO_SIGNAL,
}


class BoundedSender:
    """Exactly one FINAL and one StreamClosed on every path; frames within the window, but for one case.

    The case: the empty frame that ends a stalled, detached or unconfirmed stream goes out although the
    window is full, so that no answer is cut without a word. Raises ValueError for limits that contradict
    themselves. All times are seconds on the caller's monotonic clock.

    resumable: a client that leaves or falls silent may come back, so the answer goes on into the spool.
    first_sequence, first_token_index: where a stream goes on that began elsewhere; FrameSent and
    FrameReplayed carry the stream's own numbers, Progress counts the frames of this sender.
    """

    def __init__(
        self,
        request_id: str,
        limits: Limits,
        window: FrameWindow,
        now: float,
        *,
        resumable: bool = False,
        first_sequence: int = 0,
        first_token_index: int = 0,
    ) -> None:
        self._request_id = request_id
        self._limits = limits
        self._window = window
        self._is_resumable = resumable
        self._outlet = Outlet(
            request_id, limits, window, first_sequence=first_sequence, first_token_index=first_token_index
        )
        self._watermark = Watermark(*limits.marks)
        self._deadlines = Deadlines(limits)
        self._pauses = Pauses()
        self._reader = Reader(now)
        self._state = State.WAITING
        self._created_at = now
        self._peak_backlog_bytes = 0
        self._signal_lost = False
        self._is_replay = self._is_degraded = False
        # How it ends. FINAL is issued once handed to the pump, and out once that is known to be done.
        self._forced_reason: FinishReason | None = None
        self._finish_reason: FinishReason | None = None
        self._cause = ""
        self._abort_asked = self._engine_done = self._final_out = False

    @property
    def state(self) -> State:
        return self._state

    @property
    def backlog(self) -> Size:
        """Produced and not known to be delivered."""
        return self._outlet.backlog

    @property
    def request_id(self) -> str:
        return self._request_id

    @property
    def produced(self) -> Size:
        return self._outlet.produced

    @property
    def reader(self) -> Reader:
        """What is known of the client; read it, do not tell it anything."""
        return self._reader

    @property
    def is_resumable(self) -> bool:
        return self._is_resumable

    @property
    def is_behind(self) -> bool:
        """The policy decides what becomes of it: out of the batch, or complete and not read."""
        is_unread = self._state is State.DRAINING and self._engine_done and self._outlet.is_blocked
        return self._state.is_out_of_batch or (is_unread and self._forced_reason is None and not self._final_issued)

    @property
    def run_ahead_bytes(self) -> int:
        """What it may hold beyond its limits, out of the spool's room; 0 once the backlog is at low again."""
        return 0 if self._state in (State.DETACHED, State.FINISHED) else self._watermark.granted_bytes

    def next_deadline(self) -> float | None:
        """When DeadlineReached is due; None if nothing is."""
        return None if self._final_issued else self._deadlines.earliest

    def statistics(self, now: float) -> SenderStatistics:
        levels = self._outlet.levels
        return SenderStatistics(
            request_id=self._request_id,
            state=self._state,
            produced=self._outlet.produced,
            sent=levels.sent,
            forwarded=levels.forwarded,
            delivered=levels.delivered,
            discarded=self._outlet.discarded,
            spooled=self._outlet.spooled,
            backlog=self._outlet.backlog,
            peak_backlog_bytes=self._peak_backlog_bytes,
            has_signal=self._has_signal,
            pauses=self._pauses.count,
            kv_releases=self._pauses.kv_releases,
            swaps=self._pauses.swaps,
            run_aheads=self._pauses.run_aheads,
            run_ahead_bytes=self.run_ahead_bytes,
            paused_s=self._pauses.length(now),
            behind_s=self._reader.behind_s(now),
            silence_s=self._reader.silence_s(now),
            drain_bytes_per_s=self._reader.drain_bytes_per_s(now),
            weight=self._reader.weight,
            is_degraded=self._is_degraded,
            age_s=now - self._created_at,
            finish_reason=self._finish_reason,
            cause=self._cause,
        )

    def handle(self, event: Event, now: float) -> tuple[Command, ...]:
        """Take one event, answer what to do, in order.

        Raises IllegalEventError, with nothing changed, for an event that cannot happen now.
        """
        refuse_by_state(event, self._state)
        if self._state is State.FINISHED:
            return ()
        self._refuse_by_history(event)
        commands: list[Command] = []
        match event:
            case TokensProduced(token_ids, text):
                self._first_tokens()
                self._outlet.add(token_ids, text)
            case FrameReplayed(frame):
                self._first_tokens()
                self._is_replay = True
                self._outlet.replay(frame)
                if frame.finish_reason is not None:
                    self._finish_engine(frame.finish_reason)
            case EngineFinished(reason):
                self._finish_engine(FinishReason.DEGRADED if self._is_degraded and reason in _NATURAL else reason)
            case FrameSent(sequence):
                self._outlet.levels.reach_sent(self._outlet.frames_up_to(sequence))
                self._final_out |= self._final_issued and self._outlet.levels.outstanding_sends == 0
            case Progress(forwarded, delivered):
                if self._outlet.levels.reach_confirmed(forwarded, delivered):
                    self._deadlines.restart(Due.SILENCE)
                    self._deadlines.restart(Due.DEGRADE)
                self._signal_lost = False
            case SignalLost():
                self._signal_lost = True
            case ClientGone(cause):
                self._break_off(FinishReason.CANCELLED, cause, commands)
            case SendFailed(detail):
                self._break_off(FinishReason.ERROR, detail, commands)
                self._final_out = True  # if FINAL was under way, that was its one attempt
            case AbortRequested(reason):
                self._abort(reason, now, commands)
            case Decided(decision):
                self._obey(decision, commands)
            case DeadlineReached():  # pragma: no branch - there is no other event
                self._act_on_deadline(now, commands)
        self._settle(now, commands)
        return tuple(commands)

    @property
    def _final_issued(self) -> bool:
        return self._finish_reason is not None

    @property
    def _has_signal(self) -> bool:
        return self._window.has_signal and not self._signal_lost

    def _refuse_by_history(self, event: Event) -> None:
        framed = self._outlet.levels.framed.frames
        match event:
            case TokensProduced() | EngineFinished() | FrameReplayed() if self._engine_done:
                raise IllegalEventError(f"{type(event).__name__} after the engine's end")
            case FrameReplayed(frame) if not self._outlet.is_finished and frame.sequence != self._outlet.next_sequence:
                raise IllegalEventError(f"frame {frame.sequence} replayed, {self._outlet.next_sequence} is next")
            case FrameSent(sequence) if not 0 < self._outlet.frames_up_to(sequence) <= framed:
                raise IllegalEventError(f"frame {sequence} sent, {framed} were handed out")
            case Progress(forwarded, delivered) if max(forwarded, delivered) > framed:
                raise IllegalEventError(f"{forwarded} forwarded, {delivered} delivered, {framed} were handed out")
            case Decided(decision) if decision.action is Action.DETACH and not self._is_resumable:
                raise IllegalEventError("detach of a stream that nobody can come back to")

    def _move(self, trigger: Trigger) -> None:
        self._state = TRANSITIONS[self._state, trigger]

    def _first_tokens(self) -> None:
        if self._state is State.WAITING:
            self._move(Trigger.FIRST_TOKENS)

    def _finish_engine(self, reason: FinishReason) -> None:
        self._engine_done = True
        self._outlet.finish(reason, complete=True)
        self._move(Trigger.ENGINE_FINISHED)

    def _end(self, commands: list[Command]) -> None:
        if not self._engine_done and not self._abort_asked:
            self._abort_asked = True
            commands.append(AbortGeneration())
        self._move(Trigger.ENDED)

    def _break_off(self, reason: FinishReason, cause: str, commands: list[Command]) -> None:
        """Nobody can be told anything any more: FINAL without a response, at once."""
        if self._state is State.DETACHED:
            return
        if self._is_resumable and not self._final_issued:
            self._detach(cause, commands, is_gone=True)
            return
        self._end(commands)
        if self._final_issued:
            return
        self._finish_reason, self._cause = self._forced_reason or reason, cause
        self._outlet.discard(self._finish_reason)
        self._final_out = True
        commands.append(CloseSilently())

    def _abort(self, reason: FinishReason, now: float, commands: list[Command]) -> None:
        """End the engine's work; what is queued may leave for drain_timeout_s. The first reason stands."""
        is_over = self._final_issued and self._state is not State.DETACHED
        if is_over or self._forced_reason is not None:
            return
        self._forced_reason = reason
        self._deadlines.follow(Due.DRAIN, True, now)
        self._outlet.finish(reason, complete=False)
        self._end(commands)

    def _cut(self, reason: FinishReason, commands: list[Command]) -> None:
        """End at once and say why, window or not: the reader must not take a prefix for the answer."""
        if self._is_replay:
            # The answer is still in the spool, and its owner may come back once more.
            reason, self._cause = FinishReason.DETACHED, reason.value
        self._end(commands)
        self._emit(self._outlet.cut(self._forced_reason or reason), commands)

    def _detach(self, cause: str, commands: list[Command], *, is_gone: bool) -> None:
        """Let the client go; what it has not got, and all that the engine still makes, goes to the spool."""
        must_resume = self._state.is_out_of_batch
        self._move(Trigger.DETACH)
        self._cause = cause
        self._finish_reason = self._forced_reason or FinishReason.DETACHED
        if is_gone:
            self._final_out = True
            commands.append(CloseSilently())
        else:
            notice, placeholder = self._outlet.notice(self._finish_reason)
            commands += [SendFrame(notice, is_notice=True), SpoolFrame(placeholder)]
        if must_resume:
            commands.append(ResumeGeneration())
        if not self._engine_done and self._reader.leave():
            commands.append(SetWeight(self._reader.weight))

    def _obey(self, decision: Decision, commands: list[Command]) -> None:
        """A decision that no longer fits does nothing: the reader may have come back meanwhile."""
        if self._final_issued:
            return
        match decision.action:
            case Action.SWAP if self._state is State.PAUSED:
                self._move(Trigger.SWAP)
                self._pauses.swaps += 1
                commands.append(SwapOut())
            case Action.DROP if self._state in (State.PAUSED, State.SWAPPED):
                self._move(Trigger.DROP)
                self._pauses.kv_releases += 1
                commands.append(ReleaseKv())
            case Action.RUN_AHEAD if self._state.is_out_of_batch:
                self._move(Trigger.RUN_AHEAD)
                self._pauses.run_aheads += 1
                self._watermark.grant(decision.run_ahead_bytes, self._outlet.backlog)
                commands.append(ResumeGeneration())
            case Action.DETACH:
                self._detach(decision.reason, commands, is_gone=False)
            case Action.CANCEL if self.is_behind:
                self._cause = decision.reason
                self._cut(FinishReason.STALLED, commands)

    def _act_on_deadline(self, now: float, commands: list[Command]) -> None:
        if self._final_issued:
            return
        match self._deadlines.due(now):
            case Due.DRAIN | Due.SILENCE | Due.SIGNAL as due if self._is_resumable:
                self._detach(_BREAKS[due].value, commands, is_gone=False)
            case Due.DRAIN | Due.SILENCE | Due.SIGNAL as due:
                self._cut(_BREAKS[due], commands)
            case Due.DEGRADE:
                self._move(Trigger.REPLACE)
                self._is_degraded = True
                self._outlet.restart()
                commands.append(ReplaceGeneration())

    def _settle(self, now: float, commands: list[Command]) -> None:
        """Do whatever the event made possible or necessary."""
        self._send_ready(commands)
        before, backlog = self._state, self._outlet.backlog
        self._pause_or_resume(self._watermark.update(backlog), now, commands)
        if self._state is not before:
            self._send_ready(commands)  # what waited to be merged has nothing more to wait for
            backlog = self._outlet.backlog
        self._peak_backlog_bytes = max(self._peak_backlog_bytes, backlog.bytes)
        self._watch(backlog, now, commands)
        if self._engine_done and self._final_out:
            self._move(Trigger.CLOSED)
            commands.append(StreamClosed(self._finish_reason or FinishReason.ERROR))

    def _send_ready(self, commands: list[Command]) -> None:
        if self._state is State.DETACHED:
            commands += [SpoolFrame(frame) for frame in self._outlet.to_spool()]
            return
        for frame in self._outlet.ready(may_merge=self._state is State.STREAMING, has_signal=self._has_signal):
            self._emit(frame, commands)

    def _emit(self, frame: Frame, commands: list[Command]) -> None:
        self._finish_reason = frame.finish_reason
        commands.append(SendFrame(frame))

    def _pause_or_resume(self, is_above: bool, now: float, commands: list[Command]) -> None:
        if self._state.is_out_of_batch and not is_above:
            self._move(Trigger.AT_LOW)
            commands.append(ResumeGeneration())
            return
        # Without a signal the backlog says nothing until the window is full. A degraded answer is too
        # short to be paused.
        is_known = self._has_signal or self._outlet.is_blocked
        if self._state is State.STREAMING and is_above and is_known and not self._is_degraded:
            self._move(Trigger.ABOVE_HIGH)
            self._pauses.begin(now)
            commands.append(PauseGeneration())

    def _watch(self, backlog: Size, now: float, commands: list[Command]) -> None:
        is_out = self._state.is_out_of_batch
        if not is_out:
            self._pauses.end(now)
        blocked, has_signal = self._outlet.is_blocked, self._has_signal
        waits_for_news = blocked or self._outlet.levels.unconfirmed.frames > 0
        # A stream without a signal may be read perfectly well: only being stuck counts against it.
        self._deadlines.follow(Due.SILENCE, has_signal and waits_for_news, now)
        self._deadlines.follow(Due.SIGNAL, not has_signal and (blocked or is_out), now)
        self._deadlines.follow(Due.DEGRADE, is_out and not (self._is_resumable or self._is_degraded), now)
        self._reader.observe(self._outlet.levels.delivered, backlog, now)
        self._reader.follow_behind(self.is_behind or self.run_ahead_bytes > 0, now)
        if self._state is State.STREAMING and self._reader.weigh(backlog, has_signal=has_signal, now=now):
            commands.append(SetWeight(self._reader.weight))
