"""The driver of a simulation: tells the core what happened, does what it says, knows what is due when.

What runtime/driver.py is to the real one, with clients at the other end instead of Triton's pump.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from time import perf_counter

from sluiceway.cli.simulate.agenda import Agenda, Kind
from sluiceway.cli.simulate.arms import Arm
from sluiceway.cli.simulate.client import Client
from sluiceway.cli.simulate.machine import Machine
from sluiceway.cli.simulate.profile import Profile
from sluiceway.cli.simulate.stream import Stream
from sluiceway.cli.simulate.trace import Arrival, Reader
from sluiceway.core.behind import describe
from sluiceway.core.commands import (
    AbortGeneration,
    Command,
    Frame,
    PauseGeneration,
    ReleaseKv,
    ResumeGeneration,
    SendFrame,
    SetWeight,
    StreamClosed,
    SwapOut,
)
from sluiceway.core.decision import BehindStream, Load
from sluiceway.core.events import (
    ClientGone,
    DeadlineReached,
    Decided,
    EngineFinished,
    Event,
    FinishReason,
    FrameSent,
    TokensProduced,
)
from sluiceway.core.limits import Limits
from sluiceway.core.policy import Policy
from sluiceway.core.reviews import Reviews
from sluiceway.core.sender import BoundedSender
from sluiceway.core.window import DeliveryWindow

_SENDS_OUT = 2  # so many may be outstanding before the core takes the pump for slow


class Driver:
    """One arm's streams. peak_buffered_bytes: produced and not known to be delivered, all together.
    peak_granted_bytes: of the spool, to run ahead with. peak_behind: streams that the policy looked after.
    review_s: real seconds of each turn of the policy.
    """

    def __init__(self, arm: Arm, profile: Profile, machine: Machine, limits: Limits) -> None:
        self._arm = arm
        self._profile = profile
        self._machine = machine
        self._limits = limits
        self._frame_bytes = limits.frame_overhead_bytes + profile.text_bytes_per_token  # with one token
        self._agenda = Agenda()
        self._reviews = Reviews(Policy(mode=arm.mode))
        self._buffered = self._granted = 0
        self.streams: dict[str, Stream] = {}
        self.peak_buffered_bytes = self.peak_granted_bytes = self.peak_behind = 0
        self.review_s: list[float] = []
        self.commands: Counter[str] = Counter()
        self.decisions: Counter[tuple[str, str]] = Counter()

    def arrive(self, number: int, arrival: Arrival) -> None:
        request_id = f"r{number}"
        profile = self._profile
        window = DeliveryWindow(self._limits.window)
        window.open(request_id)
        stream = Stream(
            request_id,
            arrival,
            self._machine.submit(request_id, number, arrival.prompt_tokens),
            BoundedSender(request_id, self._limits, window, arrival.arrival_s),
            window,
            Client(
                Reader.parse(arrival.reader),
                arrival.arrival_s,
                buffer_bytes=profile.client_buffer_bytes,
                lump_bytes=profile.client_lump_bytes,
                envoy_bytes=profile.envoy_buffer_bytes,
            ),
        )
        self.streams[request_id] = stream
        if arrival.leaves_after_s is not None:
            self._agenda.enter(arrival.arrival_s + arrival.leaves_after_s, Kind.LEAVE, stream)

    def turn(self, now: float) -> None:
        """Whatever is due by now."""
        for at, kind, stream in self._agenda.due(now):
            match kind:
                case Kind.LEAVE:
                    self._leave(stream, at, now)
                case Kind.RECORD if at == stream.record_at:
                    stream.record_at = None
                    self._record(stream, at)
                case Kind.DEADLINE if at == stream.deadline_at:
                    stream.deadline_at = None
                    self._apply(stream, DeadlineReached(), now)
        if (review_at := self._reviews.next_deadline()) is not None and review_at <= now:
            self._review(now)

    def next_deadline(self) -> float | None:
        """When turn() has something to do even if nothing comes."""
        deadlines = (self._agenda.next_at, self._reviews.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    def tell(self, stream: Stream, now: float) -> None:
        """Pass the pending tokens on to the core."""
        tokens, stream.pending = stream.pending, 0
        if not tokens or stream.sender is None:
            return
        frames = 1
        if not stream.is_normal:
            # As many as would have gone singly: what the client takes, and then until the rest waits to be merged.
            stream.client.advance(now)
            unconfirmed = stream.backlog_bytes // self._frame_bytes
            taken = stream.client.room // self._frame_bytes
            frames = max(1, min(tokens, taken + max(0, self._limits.merge_frames - unconfirmed)))
        text_bytes = tokens * self._profile.text_bytes_per_token + (frames - 1) * self._limits.frame_overhead_bytes
        self._apply(stream, TokensProduced(_ids(tokens), _text(text_bytes)), now)

    def _singles(self, frame: Frame) -> int:
        """How many frames of one token tell() has padded it for, without the last, which may hold more."""
        padding = len(frame.text) - len(frame.token_ids) * self._profile.text_bytes_per_token
        return min(padding // self._limits.frame_overhead_bytes, len(frame.token_ids))

    def finish(self, stream: Stream, now: float) -> None:
        """The engine made its last token."""
        self.tell(stream, now)
        self._apply(stream, EngineFinished(FinishReason.LENGTH), now)

    def _apply(self, stream: Stream, event: Event, now: float) -> None:
        """Tell the core, and do what it says."""
        sender = stream.sender
        if sender is None:
            return
        frames, ended = stream.client.frames, False
        for command in sender.handle(event, now):
            match command:
                case SendFrame(frame):
                    stream.client.take(frame, now, self._singles(frame))
                    stream.unsent_frames += 1
                    ended |= frame.finish_reason is not None
                case StreamClosed(reason):
                    self._close(stream, reason, now)
                    return
                case _:
                    self._execute(stream, command)
        if ended or stream.unsent_frames > _SENDS_OUT:
            stream.unsent_frames = 0
            self._apply(stream, FrameSent(stream.client.frames - 1), now)
        if stream.is_abort_due:
            stream.is_abort_due = False
            self._apply(stream, EngineFinished(FinishReason.CANCELLED), now)
        if stream.sender is None:
            return
        if stream.client.frames > frames and not stream.is_gone:
            if stream.is_normal:
                self._record(stream, now)  # it has them
            elif stream.record_at is None:
                self._record_at(stream, now)  # they are forwarded; after that, only what the client takes is news
        if not stream.is_normal:
            self._follow(stream, sender, now)

    def _execute(self, stream: Stream, command: Command) -> None:
        scheduler, request_id = self._machine.scheduler, stream.request_id
        match command:
            case PauseGeneration():
                scheduler.pause(request_id)
            case ResumeGeneration():
                scheduler.resume(request_id)
            case ReleaseKv():
                scheduler.release_kv(request_id)
            case SwapOut():
                scheduler.swap_out(request_id)
            case AbortGeneration():
                stream.is_abort_due = scheduler.remove(request_id) is not None
            case SetWeight(weight) if self._arm.buffer_aware:
                scheduler.set_weight(request_id, weight)
        self.commands[type(command).__name__] += 1

    def _close(self, stream: Stream, reason: FinishReason, now: float) -> None:
        stream.finish_reason = reason
        self._account(stream, 0, 0)
        if stream.is_behind:
            self._reviews.remove(stream.request_id, now, returned=not stream.is_gone)
        stream.sender = None

    def _account(self, stream: Stream, backlog_bytes: int, granted_bytes: int) -> None:
        """Keep the sums over all streams up to date."""
        self._buffered += backlog_bytes - stream.backlog_bytes
        self._granted += granted_bytes - stream.granted_bytes
        stream.backlog_bytes, stream.granted_bytes = backlog_bytes, granted_bytes
        self.peak_buffered_bytes = max(self.peak_buffered_bytes, self._buffered)
        self.peak_granted_bytes = max(self.peak_granted_bytes, self._granted)

    def _follow(self, stream: Stream, sender: BoundedSender, now: float) -> None:
        """Whatever the event changed: sums, whether the policy has to look at it, when it is due."""
        self._account(stream, sender.backlog.bytes, sender.run_ahead_bytes)
        if sender.is_behind is not stream.is_behind and self._arm.heeds_leaving:
            stream.is_behind = not stream.is_behind
            if stream.is_behind:
                self._reviews.add(stream.request_id, now)
                self.peak_behind = max(self.peak_behind, len(self._reviews))
            else:
                self._reviews.remove(stream.request_id, now, returned=not stream.is_gone)
        deadline = sender.next_deadline()
        if deadline is not None and (stream.deadline_at is None or deadline < stream.deadline_at):
            # One that moved further away is found out when the old one comes.
            stream.deadline_at = deadline
            self._agenda.enter(deadline, Kind.DEADLINE, stream)

    def _review(self, now: float) -> None:
        began = perf_counter()
        decisions = self._reviews.review(now, self._load(now), lambda request_id: self._describe(request_id, now))
        self.review_s.append(perf_counter() - began)
        for request_id, decision in decisions:
            self.decisions[decision.action.value, decision.reason] += 1
            if (stream := self.streams[request_id]).is_behind:
                self._apply(stream, Decided(decision), now)

    def _describe(self, request_id: str, now: float) -> BehindStream | None:
        stream = self.streams[request_id]
        if stream.sender is None or not stream.is_behind:
            return None
        return describe(
            stream.sender,
            self._limits,
            now,
            prompt_tokens=stream.arrival.prompt_tokens,
            max_tokens=stream.arrival.output_tokens,
            kv_block_tokens=self._profile.kv_block_tokens,
            tenant=stream.arrival.tenant,
            tier=stream.arrival.tier,
        )

    def _load(self, now: float) -> Load:
        """As the driver knows it."""
        oldest = self._machine.scheduler.oldest_waiting
        longest_wait_s = now - self.streams[oldest].arrival.arrival_s if oldest is not None else 0.0
        return self._machine.load(longest_wait_s, self._profile.spool_bytes - self._granted)

    def _record_at(self, stream: Stream, at: float) -> None:
        """Envoy reports what is the case at ``at``, when its next record is due."""
        record_s = self._profile.record_s
        stream.record_at = (math.floor(at / record_s) + 1) * record_s
        self._agenda.enter(stream.record_at, Kind.RECORD, stream)

    def _record(self, stream: Stream, now: float) -> None:
        if stream.sender is None or stream.is_gone:
            return
        stream.client.advance(now)
        progress = stream.window.observe(stream.client.record(stream.request_id))
        self._apply(stream, progress[stream.request_id], now)
        if stream.record_at is None and not stream.is_normal:
            at = stream.client.next_frame_at()
            if at is not None:
                self._record_at(stream, at)

    def _leave(self, stream: Stream, at: float, now: float) -> None:
        stream.client.leave(at)
        if stream.client.got_all_at is not None:
            return
        stream.is_gone = True
        if stream.sender is not None and self._arm.heeds_leaving:
            self._apply(stream, ClientGone("simulated"), now)


@cache
def _ids(tokens: int) -> tuple[int, ...]:
    return (0,) * tokens


@cache
def _text(size: int) -> bytes:
    return b"x" * size
