"""The sender between an engine, a pump, Envoy and a clock, each at its own pace, in any interleaving."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.streams import LIMITS, OVERHEAD, check_whole_life, limits
from sluiceway.core.commands import (
    AbortGeneration,
    Command,
    Frame,
    PauseGeneration,
    ReleaseKv,
    ReplaceGeneration,
    ResumeGeneration,
    SendFrame,
    SpoolFrame,
    StreamClosed,
    SwapOut,
)
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
from sluiceway.core.record import Record
from sluiceway.core.sender import BoundedSender
from sluiceway.core.states import State
from sluiceway.core.transitions import IllegalEventError
from sluiceway.core.window import DeliveryWindow

NATURAL = (FinishReason.STOP, FinishReason.LENGTH)
WHOLE = (*NATURAL, FinishReason.DEGRADED)
HEADER_BYTES = 73
TEXTS = st.one_of(
    st.sampled_from(
        [b"a", b" word", b"", "漢".encode(), "漢".encode()[:2], "👩‍👩‍👧".encode()[3:9], b"\xff\xfe", b"x" * 130]
    ),
    st.binary(max_size=6),
)
ALL_LIMITS = [
    LIMITS,
    limits(merge_frames=0, low=Size.ZERO),
    limits(high=Size(bytes=20, tokens=2, frames=1), low=Size.ZERO),
    limits(window=Size(bytes=64, tokens=3, frames=2), max_frame_bytes=64),
    limits(pausing=False),
    limits(pausing=False, max_backlog_bytes=600),
    limits(degrade_after_s=0.5),
    limits(high=Size(bytes=90, tokens=9, frames=5), low=Size.ZERO, degrade_after_s=0.1),
    limits(window=Size(bytes=2_000, tokens=500, frames=200), high=Size(bytes=400, tokens=40, frames=40)),
]


class World(RuleBasedStateMachine):
    """Every other side keeps its own contract, so no event here is ever illegal."""

    @initialize(
        chosen=st.sampled_from(ALL_LIMITS),
        troubled=st.booleans(),
        reads_on=st.booleans(),
        is_resumable=st.booleans(),
        length=st.sampled_from([0, 20, 60, 60]),
        begins_behind=st.booleans(),
    )
    def begin(
        self,
        chosen: Limits,
        troubled: bool,
        reads_on: bool,
        is_resumable: bool = False,
        length: int = 0,
        begins_behind: bool = False,
    ) -> None:
        self.limits = chosen
        self.troubled = troubled
        self.reads_on = reads_on
        self.is_resumable = is_resumable
        self.length = length  # no end and no trouble before so many tokens: most lives are not over at once
        self.now = 100.0
        self.window = DeliveryWindow(chosen.window)
        self.window.open("r")
        self.sender = BoundedSender("r", chosen, self.window, self.now, resumable=is_resumable)
        self.commands: list[Command] = []
        self.frames: list[Frame] = []  # to the client
        self.answer: list[Frame] = []  # what the client and the spool have together
        # The engine: what it made, what it has not heard yet.
        self.raw = b""
        self.tokens = self.replaced_tokens = 0
        self.biggest = self.late_bytes = 0
        self.unheard: list[Command] = []
        self.engine_runs = True
        self.engine_done = False
        self.natural_end: FinishReason | None = None
        # The pump and Envoy: counters of frames and bytes.
        self.sent = self.forwarded = 0
        self.body_bytes = self.let_out_bytes = self.data_frames = 0
        self.client_gone = self.timed_out = self.we_ended_it = False
        self.last_record = Record("rpc", 0, 0, HEADER_BYTES, HEADER_BYTES)
        if begins_behind:
            self.record_comes()
            for _ in range(100):
                if self.sender.state in (State.WAITING, State.STREAMING):
                    self.engine_steps(b" word", 1)
            self.engine_hears()

    def post(self, event: Event) -> None:
        for command in self.sender.handle(event, self.now):
            self.commands.append(command)
            match command:
                case SendFrame(frame, is_notice):
                    self.frames.append(frame)
                    self.answer += [] if is_notice else [frame]
                    self.check_window()
                case SpoolFrame(frame):
                    assert self.is_resumable
                    self.answer.append(frame)
                case PauseGeneration() | ResumeGeneration() | SwapOut() | ReleaseKv() | AbortGeneration():
                    self.unheard.append(command)
                case ReplaceGeneration():  # another request, of which the driver alone gets the news from now on
                    self.raw, self.answer = b"", []
                    self.tokens, self.replaced_tokens = 0, self.replaced_tokens + self.tokens
                    self.unheard, self.engine_runs = [], True
        if self.sender.state is State.STREAMING and not self.sender.run_ahead_bytes:
            self.late_bytes = 0  # it was at low

    @property
    def made(self) -> int:
        return self.replaced_tokens + self.tokens

    def check_window(self) -> None:
        in_flight = self.window.in_flight
        forced = self.frames[-1].finish_reason not in (None, *WHOLE)
        assert forced or in_flight.frames == 1 or not in_flight.exceeds(self.limits.window)

    def follow_clock(self) -> None:
        """As the driver does: until no deadline is due, which takes few turns or the driver would spin."""
        for _ in range(5):
            deadline = self.sender.next_deadline()
            if deadline is None or deadline > self.now:
                return
            self.post(DeadlineReached())
            self.timed_out = True
        raise AssertionError("a deadline that was met comes again and again")

    # -- the clock

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, 1.9, 2.0, 3.0, 5.0, 30.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.follow_clock()

    # -- the engine

    @precondition(lambda self: self.engine_runs and not self.engine_done)
    @rule(times=st.integers(2, 20))
    def engine_is_fast(self, times: int) -> None:
        for _ in range(times):
            self.engine_steps(b" word", 1)

    @precondition(lambda self: self.engine_runs and not self.engine_done)
    @rule(text=TEXTS, count=st.integers(0, 3))
    def engine_steps(self, text: bytes, count: int) -> None:
        token_ids = tuple(range(self.tokens, self.tokens + count))
        self.raw += text
        self.tokens += count
        self.biggest = max(self.biggest, 3 * len(text) + 9)
        if self.sender.state not in (State.WAITING, State.STREAMING):
            self.late_bytes += 3 * len(text) + 9  # they were on their way when it was paused
        self.post(TokensProduced(token_ids, text))

    @precondition(lambda self: self.unheard)
    @rule()
    def engine_hears(self) -> None:
        for command in self.unheard:
            if self.engine_done:
                break
            match command:
                case PauseGeneration():
                    assert self.engine_runs
                    self.engine_runs = False
                case ResumeGeneration():
                    assert not self.engine_runs
                    self.engine_runs = True
                case ReleaseKv() | SwapOut():
                    assert not self.engine_runs
                case AbortGeneration():
                    self.engine_done = True
                    self.post(EngineFinished(FinishReason.CANCELLED))
        self.unheard = []

    @precondition(lambda self: self.engine_runs and not self.engine_done and self.tokens >= self.length)
    @rule(reason=st.sampled_from([*NATURAL, FinishReason.ERROR]))
    def engine_finishes(self, reason: FinishReason) -> None:
        self.engine_done = True
        self.natural_end = reason
        self.post(EngineFinished(reason))

    # -- the pump, Envoy, the client

    @rule(count=st.integers(1, 5))
    def sends_return(self, count: int) -> None:
        for _ in range(min(count, len(self.frames) - self.sent)):
            self.sent += 1
            self.post(FrameSent(self.sent - 1))

    @rule(count=st.integers(1, 5))
    def envoy_forwards(self, count: int) -> None:
        """Also frames whose send has not returned: Triton may be faster than the news of it."""
        for frame in self.frames[self.forwarded : self.forwarded + count]:
            self.forwarded += 1
            self.body_bytes += frame.wire_bytes

    @rule(size=st.sampled_from([1, 7, 40, 10_000]))
    def client_reads(self, size: int) -> None:
        size = min(size, self.body_bytes - self.let_out_bytes)
        if size > 0 and not self.client_gone:
            self.let_out_bytes += size
            self.data_frames += 1

    @rule()
    def record_comes(self) -> None:
        wire_bytes = HEADER_BYTES + self.let_out_bytes + 9 * self.data_frames
        self.last_record = Record("rpc", self.forwarded, self.body_bytes, wire_bytes, HEADER_BYTES)
        self.record_comes_again()

    @rule()
    def record_comes_again(self) -> None:
        self.post(self.window.observe(self.last_record)["r"])

    # -- trouble

    @precondition(lambda self: self.troubled)
    @rule()
    def signal_is_lost(self) -> None:
        self.post(SignalLost())

    @precondition(lambda self: self.troubled and self.made > max(3, self.length))
    @rule()
    def client_leaves(self) -> None:
        self.client_gone = True
        self.post(ClientGone("reset"))

    @precondition(lambda self: self.troubled and self.made > max(3, self.length))
    @rule()
    def send_fails(self) -> None:
        self.post(SendFailed("broken"))

    @precondition(lambda self: self.troubled and self.made > max(3, self.length))
    @rule()
    def server_shuts_down(self) -> None:
        self.we_ended_it = True
        self.post(AbortRequested(FinishReason.SHUTDOWN))

    # -- the policy

    @rule(
        action=st.sampled_from([Action.HOLD, Action.SWAP, Action.DROP, Action.RUN_AHEAD]),
        granted=st.sampled_from([0, 1, 300]),
    )
    def policy_decides(self, action: Action, granted: int) -> None:
        self.post(Decided(Decision(action=action, reason="test", run_ahead_bytes=granted)))

    @precondition(lambda self: self.troubled and self.made > max(3, self.length))
    @rule(action=st.sampled_from([Action.DETACH, Action.CANCEL]))
    def policy_lets_go(self, action: Action) -> None:
        self.we_ended_it |= action is Action.CANCEL
        if self.is_resumable or action is Action.CANCEL:
            self.post(Decided(Decision(action=action, reason="test")))

    # -- what always holds

    @invariant()
    def life_is_whole(self) -> None:
        check_whole_life(self.commands)

    @invariant()
    def frames_are_a_prefix_of_the_answer(self) -> None:
        """Of the one that took its place, once it was replaced."""
        text = "".join(frame.text for frame in self.answer)
        assert self.raw.decode(errors="replace").startswith(text)
        ids = [token for frame in self.answer for token in frame.token_ids]
        assert ids == list(range(len(ids)))
        assert len(ids) <= self.tokens
        assert all(frame.wire_bytes == len(frame.text.encode()) + OVERHEAD for frame in self.answer)
        starts = [frame.first_token_index for frame in self.answer]
        assert starts == sorted(starts)

    @invariant()
    def levels_add_up(self) -> None:
        seen = self.sender.statistics(self.now)
        left = seen.produced - seen.discarded - seen.spooled - seen.delivered
        assert seen.backlog == self.sender.backlog == left
        assert seen.delivered.frames <= seen.forwarded.frames <= seen.produced.frames
        assert seen.produced.tokens == self.made
        assert seen.backlog.bytes <= seen.peak_backlog_bytes or seen.finish_reason is not None

    @invariant()
    def backlog_is_bounded(self) -> None:
        if not self.sender.statistics(self.now).is_degraded:
            high, _ = self.limits.marks
            # Each grant starts from what has come by then.
            grants = self.sender.statistics(self.now).run_aheads
            late = (1 + grants) * (2 * self.biggest + OVERHEAD) + self.late_bytes
            most = high.bytes + self.sender.run_ahead_bytes + self.limits.window.bytes + late
            assert self.sender.backlog.bytes <= most

    @invariant()
    def nobody_holds_up_a_detached_stream(self) -> None:
        if self.sender.state is State.DETACHED:
            assert self.sender.next_deadline() is None
            assert self.unheard or self.engine_done or self.engine_runs

    @invariant()
    def who_is_behind_waits_for_something(self) -> None:
        if self.sender.is_behind:
            assert self.sender.backlog != Size.ZERO
            assert self.sender.statistics(self.now).finish_reason is None

    @invariant()
    def what_can_leave_has_left(self) -> None:
        """Nothing waits without a reason that will pass: frames on their way, or a deadline."""
        seen = self.sender.statistics(self.now)
        if seen.finish_reason is None and seen.backlog.frames == 0 and self.sent == len(self.frames):
            assert seen.backlog == Size.ZERO
            assert not self.sender.state.is_out_of_batch

    def teardown(self) -> None:
        """Let the world go on, with a reader or without one: the stream ends."""
        if not hasattr(self, "sender"):
            return
        for _ in range(400):
            if self.sender.state is State.FINISHED:
                break
            if self.unheard:
                self.engine_hears()
            if self.engine_runs and not self.engine_done:
                self.engine_finishes(FinishReason.STOP)
            self.sends_return(100)
            if self.reads_on:
                self.envoy_forwards(100)
                self.client_reads(10_000)
                self.record_comes()
            elif (deadline := self.sender.next_deadline()) is not None:
                self.now = max(self.now, deadline)
                self.follow_clock()
        assert self.sender.state is State.FINISHED
        assert isinstance(self.commands[-1], StreamClosed)
        assert self.sender.next_deadline() is None
        self.life_is_whole()
        self.frames_are_a_prefix_of_the_answer()
        last = self.answer[-1].finish_reason if self.answer else None
        if last in WHOLE:
            assert "".join(frame.text for frame in self.answer) == self.raw.decode(errors="replace")
            assert sum(len(frame.token_ids) for frame in self.answer) == self.tokens
        elif self.is_resumable:
            # Whatever became of the client, the spool has the end.
            assert last is not None
            assert self.we_ended_it or last is FinishReason.ERROR is self.natural_end
        elif not self.troubled and self.reads_on and not self.timed_out:
            assert self.frames[-1].finish_reason is FinishReason.ERROR is self.natural_end


TestWorld = World.TestCase
TestWorld.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


any_event = st.one_of(
    st.builds(TokensProduced, st.just((1,)), TEXTS),
    st.builds(EngineFinished, st.sampled_from(FinishReason)),
    st.builds(FrameSent, st.integers(-1, 12)),
    st.builds(SendFailed, st.just("broken")),
    st.builds(Progress, st.integers(0, 12), st.integers(0, 12)),
    st.builds(SignalLost),
    st.builds(ClientGone, st.just("reset")),
    st.builds(AbortRequested, st.sampled_from(FinishReason)),
    st.builds(DeadlineReached),
    st.builds(
        Decided,
        st.builds(Decision, action=st.sampled_from(Action), reason=st.just("test"), run_ahead_bytes=st.just(99)),
    ),
    st.builds(
        FrameReplayed,
        st.builds(
            Frame, st.integers(0, 12), st.just(0), st.just((1,)), st.just("a"), st.just(9),
            st.sampled_from([None, None, None, FinishReason.STOP]),
        ),
    ),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(ALL_LIMITS),
    st.booleans(),
    st.lists(st.tuples(any_event, st.sampled_from([0.0, 0.5, 2.0, 60.0])), max_size=40),
)
def test_any_event_in_any_state_is_taken_refused_or_ignored(
    chosen: Limits, is_resumable: bool, events: list[tuple[Event, float]]
) -> None:
    window = DeliveryWindow(chosen.window)
    window.open("r")
    sender = BoundedSender("r", chosen, window, 0.0, resumable=is_resumable)
    now = 0.0
    commands: list[Command] = []
    for event, seconds in events:
        now += seconds
        before = sender.statistics(now), sender.next_deadline(), window.statistics()
        finished = sender.state is State.FINISHED
        try:
            commands += sender.handle(event, now)
        except IllegalEventError:
            assert (sender.statistics(now), sender.next_deadline(), window.statistics()) == before
            assert not finished
        if finished:
            assert (sender.statistics(now), sender.next_deadline(), window.statistics()) == before
        check_whole_life(commands)


@pytest.mark.parametrize("chosen", ALL_LIMITS)
def test_a_reader_at_any_pace_gets_the_whole_answer(chosen: Limits) -> None:
    for pace in (1, 3, 50):
        world = World()
        world.begin(chosen, troubled=False, reads_on=True)
        world.record_comes()
        for _ in range(300):
            if world.engine_runs:
                world.engine_steps("né漢👩‍👧".encode(), 2)
            if world.unheard:
                world.engine_hears()
            world.sends_return(10)
            world.envoy_forwards(pace)
            world.client_reads(40 * pace)
            world.record_comes()
        world.teardown()
        assert "".join(frame.text for frame in world.frames) == world.raw.decode()
        assert len(world.raw) > 0
