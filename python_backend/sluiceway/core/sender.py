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
    ResumeGeneration,
    SendFrame,
    StreamClosed,
)
from sluiceway.core.deadlines import Deadlines, Due
from sluiceway.core.events import (
    AbortRequested,
    ClientGone,
    DeadlineReached,
    EngineFinished,
    Event,
    FinishReason,
    FrameSent,
    Progress,
    SendFailed,
    SignalLost,
    TokensProduced,
)
from sluiceway.core.limits import Limits, Size
from sluiceway.core.outlet import Outlet
from sluiceway.core.pauses import Pauses
from sluiceway.core.states import State
from sluiceway.core.statistics import SenderStatistics
from sluiceway.core.transitions import TRANSITIONS, IllegalEventError, Trigger, refuse_by_state
from sluiceway.core.watermark import Watermark
from sluiceway.core.window import DeliveryWindow


class BoundedSender:
    """Exactly one FINAL and one StreamClosed on every path; frames within the window, but for one case.

    The case: the empty frame that ends a stalled or unconfirmed stream goes out although the window is
    full, so that no answer is cut without a word. Raises ValueError for limits that contradict
    themselves. All times are seconds on the caller's monotonic clock.
    """

    def __init__(self, request_id: str, limits: Limits, window: DeliveryWindow, now: float) -> None:
        self._request_id = request_id
        self._limits = limits
        self._window = window
        self._outlet = Outlet(request_id, limits, window)
        self._watermark = Watermark(limits.high, limits.low)
        self._deadlines = Deadlines(limits)
        self._pauses = Pauses()
        self._state = State.WAITING
        self._created_at = now
        self._peak_backlog_bytes = 0
        self._signal_lost = False
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
            backlog=self._outlet.backlog,
            peak_backlog_bytes=self._peak_backlog_bytes,
            has_signal=self._has_signal,
            pauses=self._pauses.count,
            kv_releases=self._pauses.kv_releases,
            paused_s=self._pauses.length(now),
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
                if self._state is State.WAITING:
                    self._move(Trigger.FIRST_TOKENS)
                self._outlet.add(token_ids, text)
            case EngineFinished(reason):
                self._engine_done = True
                self._outlet.finish(reason, complete=True)
                self._move(Trigger.ENGINE_FINISHED)
            case FrameSent(sequence):
                self._outlet.levels.reach_sent(sequence + 1)
                self._final_out |= self._final_issued and self._outlet.levels.outstanding_sends == 0
            case Progress(forwarded, delivered):
                if self._outlet.levels.reach_confirmed(forwarded, delivered):
                    self._deadlines.restart(Due.SILENCE)
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
            case TokensProduced() | EngineFinished() if self._engine_done:
                raise IllegalEventError(f"{type(event).__name__} after EngineFinished")
            case FrameSent(sequence) if not 0 <= sequence < framed:
                raise IllegalEventError(f"frame {sequence} sent, {framed} were handed out")
            case Progress(forwarded, delivered) if max(forwarded, delivered) > framed:
                raise IllegalEventError(f"{forwarded} forwarded, {delivered} delivered, {framed} were handed out")

    def _move(self, trigger: Trigger) -> None:
        self._state = TRANSITIONS[self._state, trigger]

    def _end(self, commands: list[Command]) -> None:
        if not self._engine_done and not self._abort_asked:
            self._abort_asked = True
            commands.append(AbortGeneration())
        self._move(Trigger.ENDED)

    def _break_off(self, reason: FinishReason, cause: str, commands: list[Command]) -> None:
        """Nobody can be told anything any more: FINAL without a response, at once."""
        self._end(commands)
        if self._final_issued:
            return
        self._finish_reason, self._cause = self._forced_reason or reason, cause
        self._outlet.discard(self._finish_reason)
        self._final_out = True
        commands.append(CloseSilently())

    def _abort(self, reason: FinishReason, now: float, commands: list[Command]) -> None:
        """End the engine's work; what is queued may leave for drain_timeout_s. The first reason stands."""
        if self._final_issued or self._forced_reason is not None:
            return
        self._forced_reason = reason
        self._deadlines.follow(Due.DRAIN, True, now)
        self._outlet.finish(reason, complete=False)
        self._end(commands)

    def _cut(self, reason: FinishReason, commands: list[Command]) -> None:
        """End at once and say why, window or not: the reader must not take a prefix for the answer."""
        self._end(commands)
        self._emit(self._outlet.cut(self._forced_reason or reason), commands)

    def _act_on_deadline(self, now: float, commands: list[Command]) -> None:
        if self._final_issued:
            return
        match self._deadlines.due(now):
            case Due.DRAIN | Due.SILENCE:
                self._cut(FinishReason.STALLED, commands)  # an abort's own reason stands
            case Due.SIGNAL:
                self._cut(FinishReason.NO_SIGNAL, commands)
            case Due.HOLD:
                self._move(Trigger.HELD_TOO_LONG)
                self._pauses.kv_releases += 1
                commands.append(ReleaseKv())

    def _settle(self, now: float, commands: list[Command]) -> None:
        """Do whatever the event made possible or necessary."""
        self._send_ready(commands)
        before = self._state
        self._pause_or_resume(self._watermark.update(self._outlet.backlog), now, commands)
        if self._state is not before:
            self._send_ready(commands)  # what waited to be merged has nothing more to wait for
        self._peak_backlog_bytes = max(self._peak_backlog_bytes, self._outlet.backlog.bytes)
        self._watch(now)
        if self._engine_done and self._final_out:
            self._move(Trigger.CLOSED)
            commands.append(StreamClosed(self._finish_reason or FinishReason.ERROR))

    def _send_ready(self, commands: list[Command]) -> None:
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
        # Without a signal the backlog says nothing until the window is full.
        is_known = self._has_signal or self._outlet.is_blocked
        if self._state is State.STREAMING and is_above and is_known and self._limits.pausing:
            self._move(Trigger.ABOVE_HIGH)
            self._pauses.begin(now)
            commands.append(PauseGeneration())

    def _watch(self, now: float) -> None:
        if not self._state.is_out_of_batch:
            self._pauses.end(now)
        blocked = self._outlet.is_blocked
        waits_for_news = blocked or self._outlet.levels.unconfirmed.frames > 0
        # A stream without a signal may be read perfectly well: only being stuck counts against it.
        self._deadlines.follow(Due.SILENCE, self._has_signal and waits_for_news, now)
        self._deadlines.follow(Due.SIGNAL, not self._has_signal and (blocked or self._state.is_out_of_batch), now)
        self._deadlines.follow(Due.HOLD, self._state is State.PAUSED, now)
