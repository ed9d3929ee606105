"""One arm of a simulation: requests arrive, the machine steps, the core decides, clients read.

The core, its window and the scheduler are the ones that serve; clock, clients and the price of a step are
made up. What is approximated, so that thousands of streams take seconds:

- tokens reach the core in lumps: of a slow reader what a record's time brings, at least the profile's
  lump_tokens; of a normal one, and where nothing is ever paused, LARGEST_LUMP_TOKENS;
- such a lump is one frame, padded to the wire bytes that a frame for each token would have had;
- a normal reader's lump is sent, forwarded, delivered and known to be so at once;
- Envoy's records come for a stream only when they confirm a frame, at the moment that they would have come,
  and the core hears that sends returned when a few have, or the last one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from enum import IntEnum, auto
from functools import cache
from itertools import count

from sluiceway.cli.simulate.arms import Arm
from sluiceway.cli.simulate.client import Client
from sluiceway.cli.simulate.figures import Outcome
from sluiceway.cli.simulate.machine import Machine
from sluiceway.cli.simulate.profile import Profile
from sluiceway.cli.simulate.stream import Stream
from sluiceway.cli.simulate.trace import Arrival, Reader
from sluiceway.core import commands
from sluiceway.core.events import (
    ClientGone,
    DeadlineReached,
    EngineFinished,
    Event,
    FinishReason,
    FrameSent,
    TokensProduced,
)
from sluiceway.core.limits import Limits
from sluiceway.core.sender import BoundedSender
from sluiceway.core.window import DeliveryWindow

LARGEST_LUMP_TOKENS = 64  # not above the low watermark, so a reader that keeps up stays below it
_SENDS_OUT = 2  # so many may be outstanding before the core takes the pump for slow
_SAMPLE_S = 0.5
_FOREVER_S = 1e9
_LONGEST_AFTER_LAST_ARRIVAL_S = 3600.0  # for what never ends, in an arm that can get stuck


class _Kind(IntEnum):
    LEAVE = auto()
    RECORD = auto()
    DEADLINE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What happened. generated: samples (time, tokens by then). peak_buffered_bytes: produced and not known to
    be delivered, all streams together. Times in simulated seconds.
    """

    arm: str
    outcomes: list[Outcome]
    ended_at: float
    generated: list[tuple[float, int]]
    steps: int
    recomputed_tokens: int
    peak_buffered_bytes: int
    pauses: int
    kv_releases: int


class Simulation:
    """run() once. trace: in order of arrival."""

    def __init__(self, arm: Arm, profile: Profile, trace: Seq[Arrival], limits: Limits | None = None) -> None:
        self._arm = arm
        self._profile = profile
        self._trace = trace
        self._limits = _limits(arm, limits or Limits())
        self._frame_bytes = self._limits.frame_overhead_bytes + profile.text_bytes_per_token  # with one token
        self._machine = Machine(profile)
        self._streams: dict[str, Stream] = {}
        self._events: list[tuple[float, int, _Kind, Stream]] = []
        self._order = count()
        self._now = 0.0
        self._buffered = self._peak_buffered = 0
        self._pauses = self._kv_releases = 0
        self._generated: list[tuple[float, int]] = [(0.0, 0)]

    def run(self) -> Result:
        arrivals, trace = 0, self._trace
        stop_at = trace[-1].arrival_s + _LONGEST_AFTER_LAST_ARRIVAL_S
        scheduler = self._machine.scheduler
        while self._now <= stop_at:
            while arrivals < len(trace) and trace[arrivals].arrival_s <= self._now:
                self._arrive(arrivals, trace[arrivals])
                arrivals += 1
            self._act()
            if scheduler.has_work() and self._step():
                continue
            upcoming = [self._events[0][0]] if self._events else []
            if arrivals < len(trace):
                upcoming.append(trace[arrivals].arrival_s)
            if not upcoming or min(upcoming) > stop_at:
                break
            self._now = max(self._now, min(upcoming))
        self._generated.append((self._now, self._machine.generated_tokens))
        return Result(
            arm=self._arm.name,
            outcomes=[stream.outcome() for stream in self._streams.values()],
            ended_at=self._now,
            generated=self._generated,
            steps=self._machine.steps,
            recomputed_tokens=scheduler.recomputed_tokens,
            peak_buffered_bytes=self._peak_buffered,
            pauses=self._pauses,
            kv_releases=self._kv_releases,
        )

    def _arrive(self, number: int, arrival: Arrival) -> None:
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
        self._streams[request_id] = stream
        if arrival.leaves_after_s is not None:
            self._at(arrival.arrival_s + arrival.leaves_after_s, _Kind.LEAVE, stream)

    def _at(self, at: float, kind: _Kind, stream: Stream) -> None:
        heapq.heappush(self._events, (at, next(self._order), kind, stream))

    def _act(self) -> None:
        """Whatever is due by now."""
        events, now = self._events, self._now
        while events and events[0][0] <= now:
            at, _, kind, stream = heapq.heappop(events)
            match kind:
                case _Kind.LEAVE:
                    self._leave(stream, at)
                case _Kind.RECORD if at == stream.record_at:
                    stream.record_at = None
                    self._record(stream, at)
                case _Kind.DEADLINE if at == stream.deadline_at:
                    stream.deadline_at = None
                    if stream.sender is not None:
                        self._apply(stream, DeadlineReached(), now)

    def _step(self) -> bool:
        """One step of the machine; False if nothing could be computed."""
        machine = self._machine
        sampled = machine.step()
        if machine.step_s == 0.0:
            return False
        self._now += machine.step_s
        now, streams = self._now, self._streams
        lump = LARGEST_LUMP_TOKENS
        if self._arm.pauses:
            lump = min(lump, max(self._profile.lump_tokens, round(self._profile.record_s / machine.step_s)))
        for sequence in sampled:
            stream = streams[sequence.request.request_id]
            stream.pending += 1
            if stream.first_token_at is None:
                stream.first_token_at = now
                self._tell(stream, now)
            stream.tokens_left -= 1
            if not stream.tokens_left:
                machine.scheduler.remove(stream.request_id)
                stream.finished_at = now
                self._tell(stream, now)
                self._apply(stream, EngineFinished(FinishReason.LENGTH), now)
            elif stream.pending >= (LARGEST_LUMP_TOKENS if stream.is_normal else lump):
                self._tell(stream, now)
        if now - self._generated[-1][0] >= _SAMPLE_S:
            self._generated.append((now, machine.generated_tokens))
        return True

    def _tell(self, stream: Stream, now: float) -> None:
        """Pass the pending tokens on to the core."""
        tokens, stream.pending = stream.pending, 0
        if not tokens or stream.sender is None:
            return
        frames = tokens
        if not stream.is_normal:
            # As many as would have gone singly: what the client takes, and then until the rest waits to be merged.
            stream.client.advance(now)
            unconfirmed = stream.backlog_bytes // self._frame_bytes
            taken = stream.client.room // self._frame_bytes
            frames = max(1, min(tokens, taken + max(0, self._limits.merge_frames - unconfirmed)))
        text_bytes = tokens * self._profile.text_bytes_per_token + (frames - 1) * self._limits.frame_overhead_bytes
        self._apply(stream, TokensProduced(_ids(tokens), _text(text_bytes)), now)

    def _apply(self, stream: Stream, event: Event, now: float) -> None:
        sender = stream.sender
        if sender is None:
            return
        scheduler = self._machine.scheduler
        aborted = closed = final = sent = False
        for command in sender.handle(event, now):
            kind = type(command)
            if kind is commands.SendFrame:
                stream.client.take(command.frame, now)
                stream.unsent_frames += 1
                sent = True
                final |= command.frame.finish_reason is not None
            elif kind is commands.PauseGeneration:
                self._pauses += 1
                scheduler.pause(stream.request_id)
            elif kind is commands.ResumeGeneration:
                scheduler.resume(stream.request_id)
            elif kind is commands.ReleaseKv:
                self._kv_releases += 1
                scheduler.release_kv(stream.request_id)
            elif kind is commands.AbortGeneration:
                aborted = scheduler.remove(stream.request_id) is not None
            elif kind is commands.StreamClosed:
                closed = True
                stream.finish_reason = command.reason
        if closed:
            self._buffered -= stream.backlog_bytes
            stream.backlog_bytes = 0
            stream.sender = None
            return
        if final or stream.unsent_frames > _SENDS_OUT:
            stream.unsent_frames = 0
            self._apply(stream, FrameSent(stream.client.frames - 1), now)
        if aborted:
            self._apply(stream, EngineFinished(FinishReason.CANCELLED), now)
        if stream.sender is None:
            return
        if sent and not stream.is_gone:
            if stream.is_normal:
                self._record(stream, now)  # it has them
            elif stream.record_at is None:
                self._record_at(stream, now)  # they are forwarded; after that, only what the client takes is news
        if not stream.is_normal:
            self._follow(stream, sender)

    def _follow(self, stream: Stream, sender: BoundedSender) -> None:
        """Keep the sum of backlogs and the queue of events up to date."""
        backlog = sender.backlog.bytes
        self._buffered += backlog - stream.backlog_bytes
        stream.backlog_bytes = backlog
        self._peak_buffered = max(self._peak_buffered, self._buffered)
        deadline = sender.next_deadline()
        if deadline is not None and (stream.deadline_at is None or deadline < stream.deadline_at):
            # One that moved further away is found out when the old one comes.
            stream.deadline_at = deadline
            self._at(deadline, _Kind.DEADLINE, stream)

    def _record_at(self, stream: Stream, at: float) -> None:
        """Envoy reports what is the case at ``at``, when its next record is due."""
        record_s = self._profile.record_s
        stream.record_at = (math.floor(at / record_s) + 1) * record_s
        self._at(stream.record_at, _Kind.RECORD, stream)

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

    def _leave(self, stream: Stream, now: float) -> None:
        stream.client.leave(now)
        if stream.client.got_all_at is not None:
            return
        stream.is_gone = True
        if stream.sender is not None and self._arm.heeds_leaving:
            self._apply(stream, ClientGone("simulated"), max(now, self._now))


def _limits(arm: Arm, limits: Limits) -> Limits:
    if arm.pauses:
        return replace(limits, release_kv_after_s=None if arm.mode == "hold" else limits.release_kv_after_s)
    silence_s = limits.max_silence_s if arm.heeds_leaving else _FOREVER_S
    return replace(limits, pausing=False, max_silence_s=silence_s)


@cache
def _ids(tokens: int) -> tuple[int, ...]:
    return (0,) * tokens


@cache
def _text(size: int) -> bytes:
    return b"x" * size
