"""One stream between the engine and the response pump: what to send when, and when to pause the engine.

The transitions are the table in transitions.py; the policy is docs/flow-control.md. Whoever owns the
window opens and closes the request there.

Its parts: outlet.py (from tokens to frames), throttle.py (whether the engine generates), ending.py (how it
ends), reader.py (what is known of the client), deadlines.py (what may not last for ever).
"""

from __future__ import annotations

from sluiceway.core import events
from sluiceway.core.commands import Command, SetWeight, SpoolFrame, StreamClosed
from sluiceway.core.deadlines import ENDS_WITH, Deadlines, Due
from sluiceway.core.decision import Action, Decision
from sluiceway.core.ending import Ending
from sluiceway.core.events import Event, FinishReason
from sluiceway.core.limits import Limits, Size
from sluiceway.core.outlet import Outlet
from sluiceway.core.reader import Reader
from sluiceway.core.refusal import acknowledged_frames, refuse_by_history
from sluiceway.core.state_machine import StateMachine
from sluiceway.core.states import State
from sluiceway.core.statistics import SenderStatistics
from sluiceway.core.throttle import Throttle
from sluiceway.core.transitions import Trigger, refuse_by_state
from sluiceway.core.window import FrameWindow

_NATURAL = (FinishReason.STOP, FinishReason.LENGTH)


class BoundedSender:
    """Exactly one FINAL and one StreamClosed on every path; frames within the window, but for one case.

    The case: the empty frame that ends a stalled, detached or unconfirmed stream goes out although the
    window is full, so that no answer is cut without a word. Raises ValueError for limits that contradict
    themselves. All times are seconds on the caller's monotonic clock.

    resumable: a client that leaves or falls silent may come back, so the answer goes on into the spool.
    acks: the client acknowledges frames, and only what it has acknowledged counts as taken.
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
        acks: bool = False,
        first_sequence: int = 0,
        first_token_index: int = 0,
    ) -> None:
        self._request_id = request_id
        self._window = window
        self._machine = StateMachine()
        self._outlet = Outlet(
            request_id,
            limits,
            window,
            first_sequence=first_sequence,
            first_token_index=first_token_index,
            acks=acks,
        )
        self._reader = Reader(now, limits.cushion if limits.pausing else None)
        self._throttle = Throttle(self._machine, limits)
        self._ending = Ending(self._machine, self._outlet, self._reader, is_resumable=resumable)
        self._deadlines = Deadlines(limits, is_resumable=resumable)
        self._created_at = now
        self._peak_backlog_bytes = 0
        self._signal_lost = False

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def backlog(self) -> Size:
        """Produced and not known to be with the client."""
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
        return self._ending.is_resumable

    @property
    def is_behind(self) -> bool:
        """The policy decides what becomes of it: out of the batch, or complete and not read."""
        state, ending = self._machine.state, self._ending
        is_unread = state is State.DRAINING and ending.is_engine_done and self._outlet.is_blocked
        return state.is_out_of_batch or (is_unread and not ending.is_forced and not ending.is_final_issued)

    @property
    def run_ahead_bytes(self) -> int:
        """What it may hold beyond its limits, out of the spool's room; 0 once the backlog is at low again."""
        return self._throttle.run_ahead_bytes

    def frames_acknowledged_by(self, sequence: int) -> int:
        """How many frames an ack of frame ``sequence`` confirms. Raises AckRefused if it cannot be true."""
        return acknowledged_frames(sequence, self._outlet)

    def next_deadline(self) -> float | None:
        """When DeadlineReached is due; None if nothing is."""
        return None if self._ending.is_final_issued else self._deadlines.earliest

    def statistics(self, now: float) -> SenderStatistics:
        outlet, pauses, reader = self._outlet, self._throttle.pauses, self._reader
        return SenderStatistics(
            request_id=self._request_id,
            state=self._machine.state,
            produced=outlet.produced,
            sent=outlet.levels.sent,
            forwarded=outlet.levels.forwarded,
            delivered=outlet.levels.delivered,
            consumed=outlet.levels.consumed,
            discarded=outlet.discarded,
            spooled=outlet.spooled,
            backlog=outlet.backlog,
            peak_backlog_bytes=self._peak_backlog_bytes,
            has_signal=self._has_signal,
            pauses=pauses.count,
            kv_releases=pauses.kv_releases,
            swaps=pauses.swaps,
            run_aheads=pauses.run_aheads,
            run_ahead_bytes=self.run_ahead_bytes,
            paused_s=pauses.length(now),
            behind_s=reader.behind_s(now),
            silence_s=reader.silence_s(now),
            drain_bytes_per_s=reader.drain_bytes_per_s(now),
            weight=reader.weight,
            is_degraded=self._throttle.is_degraded,
            age_s=now - self._created_at,
            finish_reason=self._ending.reason,
            cause=self._ending.cause,
        )

    def handle(self, event: Event, now: float) -> tuple[Command, ...]:
        """Take one event, answer what to do, in order.

        Raises IllegalEventError, with nothing changed, for an event that cannot happen now.
        """
        refuse_by_state(event, self._machine.state)
        if self._machine.state is State.FINISHED:
            return ()
        refuse_by_history(event, self._outlet, self._ending)
        commands: list[Command] = []
        match event:
            case events.TokensProduced(token_ids, text):
                self._first_tokens()
                self._outlet.add(token_ids, text)
            case events.FrameReplayed(frame):
                self._first_tokens()
                self._outlet.replay(frame)
                if frame.finish_reason is not None:
                    self._ending.finish_engine(frame.finish_reason)
            case events.EngineFinished(reason):
                is_short = self._throttle.is_degraded and reason in _NATURAL
                self._ending.finish_engine(FinishReason.DEGRADED if is_short else reason)
            case events.FrameSent(sequence):
                self._outlet.levels.reach_sent(self._outlet.frames_up_to(sequence))
                self._ending.send_returned()
            case events.Progress(forwarded, delivered, consumed):
                if self._outlet.levels.reach_confirmed(forwarded, delivered, consumed):
                    self._deadlines.progressed()
                self._signal_lost = False
            case events.SignalLost():
                self._signal_lost = True
            case events.ClientGone(cause):
                self._ending.break_off(FinishReason.CANCELLED, cause, commands)
            case events.SendFailed(detail):
                self._ending.send_failed(detail, commands)
            case events.AbortRequested(reason):
                self._ending.abort(reason, commands)
                self._deadlines.asked_to_end(now)
            case events.Decided(decision):
                self._obey(decision, commands)
            case events.DeadlineReached():  # pragma: no branch - there is no other event
                self._act_on_deadline(now, commands)
        self._settle(now, commands)
        return tuple(commands)

    @property
    def _has_signal(self) -> bool:
        return self._window.has_signal and not self._signal_lost

    def _first_tokens(self) -> None:
        if self._machine.state is State.WAITING:
            self._machine.move(Trigger.FIRST_TOKENS)

    def _obey(self, decision: Decision, commands: list[Command]) -> None:
        """A decision that no longer fits does nothing: the reader may have come back meanwhile."""
        if self._ending.is_final_issued:
            return
        match decision.action:
            case Action.DETACH:
                self._ending.detach(decision.reason, commands)
            case Action.CANCEL if self.is_behind:
                self._ending.cut(FinishReason.STALLED, decision.reason, commands)
            case _:
                self._throttle.obey(decision, self._outlet.backlog, commands)

    def _act_on_deadline(self, now: float, commands: list[Command]) -> None:
        due = None if self._ending.is_final_issued else self._deadlines.due(now)
        if due is Due.DEGRADE:
            self._outlet.restart()
            self._throttle.replace(commands)
        elif due is not None:
            self._ending.give_up(ENDS_WITH[due], commands)

    def _settle(self, now: float, commands: list[Command]) -> None:
        """Do whatever the event made possible or necessary."""
        has_signal, before = self._has_signal, self._machine.state
        self._send_ready(has_signal, commands)
        backlog = self._outlet.backlog
        # Without a signal the backlog says nothing until the window is full.
        is_known = has_signal or self._outlet.is_blocked
        self._reader.observe(self._outlet.levels.confirmed, backlog, now)
        has_plenty = has_signal and self._reader.has_plenty(backlog, now)
        self._throttle.update(backlog, has_plenty=has_plenty, is_known=is_known, now=now, commands=commands)
        if self._machine.state is not before:
            self._send_ready(has_signal, commands)  # what waited to be merged has nothing more to wait for
            backlog = self._outlet.backlog
        self._peak_backlog_bytes = max(self._peak_backlog_bytes, backlog.bytes)
        self._watch(backlog, has_signal, now, commands)
        if self._ending.is_complete:
            self._machine.move(Trigger.CLOSED)
            commands.append(StreamClosed(self._ending.reason or FinishReason.ERROR))

    def _send_ready(self, has_signal: bool, commands: list[Command]) -> None:
        state = self._machine.state
        if state is State.DETACHED:
            commands += [SpoolFrame(frame) for frame in self._outlet.to_spool()]
            return
        for frame in self._outlet.ready(may_merge=state is State.STREAMING, has_signal=has_signal):
            self._ending.hand_out(frame, commands)

    def _watch(self, backlog: Size, has_signal: bool, now: float, commands: list[Command]) -> None:
        is_out = self._machine.state.is_out_of_batch
        if not is_out:
            self._throttle.pauses.end(now)
        self._deadlines.observe(self._outlet, has_signal=has_signal, is_out=is_out, now=now)
        self._reader.follow_behind(self.is_behind or self.run_ahead_bytes > 0, now)
        if self._machine.state is State.STREAMING and self._reader.weigh(backlog, has_signal=has_signal, now=now):
            commands.append(SetWeight(self._reader.weight))
