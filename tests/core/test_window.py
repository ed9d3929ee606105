"""The delivery window against a model of Envoy that knows the truth."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluiceway.core.commands import Frame
from sluiceway.core.events import Progress
from sluiceway.core.limits import Size
from sluiceway.core.record import Record
from sluiceway.core.window import DeliveryWindow

LIMIT = Size(bytes=1000, tokens=100, frames=10)
DATA_FRAME_HEADER = 9
MODEL_LIMIT = Size(bytes=2000, tokens=10_000, frames=20)


def frame(sequence: int, wire_bytes: int = 100, tokens: int = 1) -> Frame:
    return Frame(sequence, sequence, tuple(range(tokens)), "", wire_bytes)


def record(messages: int = 0, body: int = 0, wire: int = 0, header: int = 0, *, expired: bool = False) -> Record:
    return Record("rpc", messages, body, wire, header, expired=expired)


@pytest.fixture
def window() -> DeliveryWindow:
    made = DeliveryWindow(LIMIT)
    made.open("a")
    return made


class TestLimit:
    def test_a_frame_larger_than_the_cap_goes_through_alone(self, window: DeliveryWindow) -> None:
        assert window.admits(5000, 500)
        window.sent("a", frame(0, 5000))
        assert not window.admits(1, 0)

    @pytest.mark.parametrize(("wire_bytes", "tokens"), [(901, 1), (1, 100)])
    def test_each_unit_counts(self, window: DeliveryWindow, wire_bytes: int, tokens: int) -> None:
        window.sent("a", frame(0))
        assert window.admits(900, 99)
        assert not window.admits(wire_bytes, tokens)

    def test_frames_count(self, window: DeliveryWindow) -> None:
        for sequence in range(10):
            assert window.admits(1, 1)
            window.sent("a", frame(sequence, 1))
        assert not window.admits(1, 1)

    def test_a_request_opens_once(self, window: DeliveryWindow) -> None:
        with pytest.raises(ValueError, match="'a' is open"):
            window.open("a")


class TestLevels:
    def test_no_signal_before_the_first_record(self, window: DeliveryWindow) -> None:
        assert not window.has_signal
        assert window.observe(record()) == {"a": Progress(0, 0)}
        assert window.has_signal

    def test_expired_records_are_no_signal(self, window: DeliveryWindow) -> None:
        window.observe(record())
        window.observe(record(expired=True))
        assert not window.has_signal

    def test_drained(self, window: DeliveryWindow) -> None:
        for sequence in range(3):
            window.sent("a", frame(sequence))
        assert window.observe(record(3, 300, 120 + 300 + 27, 120)) == {"a": Progress(3, 3)}
        assert window.in_flight == Size.ZERO

    def test_forwarded_and_not_delivered(self, window: DeliveryWindow) -> None:
        for sequence in range(3):
            window.sent("a", frame(sequence))
        assert window.observe(record(3, 300, 120 + 150, 120)) == {"a": Progress(3, 1)}
        assert window.in_flight == Size(bytes=200, tokens=2, frames=2)

    def test_a_header_size_that_nobody_tells_is_learnt(self, window: DeliveryWindow) -> None:
        window.observe(record(0, 0, 120))
        window.sent("a", frame(0))
        assert window.observe(record(1, 100, 120)) == {"a": Progress(1, 0)}

    def test_foreign_messages_do_not_confirm_later_frames_for_ever(self, window: DeliveryWindow) -> None:
        window.observe(record(2, 80, 200, 120))  # two errors that Triton put on the RPC itself
        window.sent("a", frame(0))
        assert window.observe(record(2, 80, 200, 120)) == {"a": Progress(0, 0)}
        assert window.observe(record(3, 180, 309, 120)) == {"a": Progress(1, 1)}

    def test_requests_share_the_window_in_send_order(self, window: DeliveryWindow) -> None:
        window.open("b")
        window.sent("a", frame(0, 600))
        assert not window.admits(600, 1)
        window.sent("b", frame(0, 300))
        assert window.observe(record(1, 600, 609)) == {"a": Progress(1, 1), "b": Progress(0, 0)}
        assert window.observe(record(2, 900, 918)) == {"a": Progress(1, 1), "b": Progress(1, 1)}

    def test_a_closed_request_gets_no_progress_and_its_frames_still_count(self, window: DeliveryWindow) -> None:
        window.open("b")
        window.sent("a", frame(0, 600))
        window.sent("b", frame(0, 300))
        window.close("a")
        assert window.in_flight.bytes == 900
        assert window.observe(record(2, 900, 918)) == {"b": Progress(1, 1)}

    def test_an_older_record_that_comes_late_changes_nothing(self, window: DeliveryWindow) -> None:
        window.sent("a", frame(0))
        window.sent("a", frame(1))
        window.observe(record(2, 200, 109))
        before = window.statistics()
        window.observe(record(1, 100, 0))
        window.observe(record(2, 200, 60))  # nothing new had passed the filters since, but bytes had been let out
        assert window.statistics() == before

    def test_frames_larger_than_booked_do_not_hold_their_neighbours_back(self, window: DeliveryWindow) -> None:
        for sequence in range(4):
            window.sent("a", frame(sequence, 100))
        assert window.observe(record(4, 1000, 500)) == {"a": Progress(4, 2)}

    def test_wrong_sizes_never_add_up(self, window: DeliveryWindow) -> None:
        for sequence in range(1000):
            window.sent("a", frame(sequence, 30))
            window.observe(record(sequence + 1, 77 * (sequence + 1), 77 * sequence + 40))
            assert window.in_flight.frames == 1


def http_record(body: int = 0, wire: int = 0, header: int = 0, *, expired: bool = False) -> Record:
    return Record("rpc", 0, body, wire, header, expired=expired, counts_messages=False)


class TestAcks:
    @pytest.fixture
    def acked(self) -> DeliveryWindow:
        made = DeliveryWindow(LIMIT)
        made.open("a", acks=True)
        for sequence in range(3):
            made.sent("a", frame(sequence))
        return made

    def test_what_envoy_let_out_stays_in_flight_until_its_ack(self, acked: DeliveryWindow) -> None:
        assert acked.observe(record(3, 300, 309)) == {"a": Progress(3, 3, 0)}
        assert acked.in_flight.frames == 3
        assert acked.acknowledge("a", 2) == {"a": Progress(3, 3, 2)}
        assert acked.in_flight == Size(bytes=100, tokens=1, frames=1)

    def test_an_ack_of_what_envoy_still_holds_frees_nothing_before_it_is_let_out(self, acked: DeliveryWindow) -> None:
        acked.observe(record(3, 300, 100))
        assert acked.acknowledge("a", 3) == {"a": Progress(3, 1, 3)}
        assert acked.in_flight.frames == 2
        acked.observe(record(3, 300, 309))
        assert acked.in_flight == Size.ZERO

    def test_an_ack_before_the_first_record_is_a_signal_and_counts_once(self, acked: DeliveryWindow) -> None:
        assert not acked.has_signal
        assert acked.acknowledge("a", 1) == {"a": Progress(1, 1, 1)}
        assert acked.has_signal
        assert acked.observe(record(3, 300, 309)) == {"a": Progress(3, 3, 1)}
        assert acked.in_flight.frames == 2

    def test_acks_are_no_signal_where_records_stopped(self, acked: DeliveryWindow) -> None:
        acked.observe(record(3, 300, 309))
        acked.observe(record(3, 300, 309, expired=True))
        acked.acknowledge("a", 3)
        assert not acked.has_signal

    def test_bytes_let_out_confirm_the_frames_that_end_there(self, acked: DeliveryWindow) -> None:
        acked.observe(http_record(0, 100, 100))
        for count in (1, 2, 3):
            assert acked.acknowledge("a", count, 150 * count) == {"a": Progress(0, 0, 0)}
        assert acked.observe(http_record(450, 100 + 299, 100)) == {"a": Progress(1, 1, 1)}
        assert acked.observe(http_record(450, 100 + 450 + 12, 100)) == {"a": Progress(3, 3, 3)}
        assert acked.in_flight == Size.ZERO
        assert acked.acknowledge("a", 3, 450) == {"a": Progress(3, 3, 3)}

    def test_bytes_that_are_out_already_confirm_at_once(self, acked: DeliveryWindow) -> None:
        acked.observe(http_record(450, 550 + 12, 100))
        assert acked.acknowledge("a", 2, 300) == {"a": Progress(2, 2, 2)}

    def test_repeated_acks_leave_one_mark_a_frame(self, acked: DeliveryWindow) -> None:
        for _ in range(1000):
            acked.acknowledge("a", 2, 10**9)
        assert len(acked._acks._clients["a"].marks) == 1

    def test_an_ack_for_more_than_was_sent_confirms_what_was(self, acked: DeliveryWindow) -> None:
        assert acked.acknowledge("a", 99) == {"a": Progress(3, 3, 3)}
        acked.sent("a", frame(3))
        assert acked.acknowledge("a", 3) == {"a": Progress(3, 3, 3)}

    def test_only_those_who_said_so_acknowledge(self, window: DeliveryWindow) -> None:
        with pytest.raises(ValueError, match="'a' was not opened with acks"):
            window.acknowledge("a", 0)

    def test_after_the_end_records_alone_count(self, acked: DeliveryWindow) -> None:
        acked.open("b")
        acked.sent("b", frame(0))
        acked.observe(record(4, 400, 209))
        acked.close("a")
        assert acked.in_flight.frames == 2  # the first two are let out and no ack is waited for any more
        acked.observe(record(4, 400, 409))
        assert acked.in_flight == Size.ZERO

    def test_after_the_end_of_one_without_records_nothing_stays(self, acked: DeliveryWindow) -> None:
        acked.close("a")
        assert acked.in_flight == Size.ZERO
        assert not acked._sent


class AckModel(RuleBasedStateMachine):
    """Two answers in one HTTP body (a WebSocket's), whose marks say where their frames end, in any order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.window = DeliveryWindow(MODEL_LIMIT)
        for name in "ab":
            self.window.open(name, acks=True)
        self.frames: dict[str, list[int]] = {"a": [], "b": []}  # sizes
        self.written: dict[str, list[int]] = {"a": [], "b": []}  # where frames end in the body
        self.marks: dict[str, list[int]] = {"a": [], "b": []}
        self.slack = 0
        self.body = self.let_out = self.pieces = self.pieces_when_drained = self.reported_out = 0

    @rule(name=st.sampled_from(["a", "b"]), size=st.integers(1, 1500))
    def send(self, name: str, size: int) -> None:
        if self.window.admits(size, 1):
            self.window.sent(name, frame(len(self.frames[name]), size))
            self.frames[name].append(size)

    @rule(name=st.sampled_from(["a", "b"]), size=st.integers(1, 3000))
    def write(self, name: str, size: int) -> None:
        """The gateway makes bytes of a frame; how many has nothing to do with what was booked."""
        if len(self.written[name]) < len(self.frames[name]):
            self.body += size
            self.written[name].append(self.body)

    @rule(name=st.sampled_from(["a", "b"]), back=st.integers(0, 3))
    def mark(self, name: str, back: int) -> None:
        count = len(self.written[name]) - back
        if count > 0:
            self.window.acknowledge(name, count, self.written[name][count - 1])
            if count > max(self.marks[name], default=0):  # one that comes after a later one says nothing new
                self.marks[name].append(count)

    @rule(size=st.integers(1, 5000), pieces=st.integers(1, 5))
    def let_bytes_out(self, size: int, pieces: int) -> None:
        if self.body > self.let_out:
            self.let_out += min(size, self.body - self.let_out)
            self.pieces += pieces

    @rule()
    def report(self) -> None:
        if self.body == self.let_out:
            self.pieces_when_drained = self.pieces
        self.window.observe(http_record(self.body, 137 + self.let_out + 9 * self.pieces, 137))
        self.reported_out = self.let_out
        self.slack = 9 * (self.pieces - self.pieces_when_drained)

    @invariant()
    def consumed_is_what_was_let_out(self) -> None:
        for name, progress in self.window._open.items():
            ends = self.written[name][: max(self.marks[name], default=0)]
            assert progress.consumed_frames <= sum(end <= self.reported_out + self.slack for end in ends)
            marks = [count for count in self.marks[name] if self.written[name][count - 1] <= self.reported_out]
            assert progress.consumed_frames >= max(marks, default=0)

    @invariant()
    def what_is_not_consumed_is_in_flight(self) -> None:
        left = [
            size
            for name, progress in self.window._open.items()
            for size in self.frames[name][progress.consumed_frames :]
        ]
        assert self.window.in_flight.bytes == sum(left)
        assert self.window.in_flight.frames == len(left)

    def teardown(self) -> None:
        for name in "ab":
            while len(self.written[name]) < len(self.frames[name]):
                self.write(name, 10)
            self.mark(name, 0)
        self.let_bytes_out(1 << 40, 1)
        self.report()
        assert self.window.in_flight == Size.ZERO
        assert not self.window._sent
        assert not self.window._forwarded


TestAckModel = AckModel.TestCase
TestAckModel.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


@dataclass(frozen=True)
class Truth:
    """Of one record. data_frames: let out since the last record at which nothing was held."""

    lag: int
    data_frames: int
    forwarded: int
    delivered: int
    let_out: int


class EnvoyModel(RuleBasedStateMachine):
    """Envoy: takes bytes in, lets bytes out in DATA frames of any size, reports at any time.

    A message counts as soon as its first byte is in, as grpc_stats does. Records get lost (what happens
    between two reports) and come again late. Booked sizes are wrong by a factor.
    The bounds under test are those of docs/delivery-signal.md.
    """

    def __init__(self) -> None:
        super().__init__()
        self.window = DeliveryWindow(MODEL_LIMIT)
        for name in "ab":
            self.window.open(name)
        self.sent: list[tuple[str, int]] = []
        self.ends: list[int] = []  # of our messages that Envoy has seen the first byte of
        self.header = self.foreign = self.body = self.let_out = self.data_frames = 0
        self.data_frames_when_drained = 0
        self.reported: list[Record] = []
        self.truth: Truth | None = None

    @initialize(booked_percent=st.sampled_from([50, 100, 200]))
    def begin(self, booked_percent: int) -> None:
        self.booked_percent = booked_percent

    @property
    def is_drained(self) -> bool:
        return len(self.ends) == len(self.sent) and (self.ends or [0])[-1] <= self.body == self.let_out

    @rule(name=st.sampled_from(["a", "b"]), halves=st.integers(10, 1500), tokens=st.integers(0, 50))
    def send(self, name: str, halves: int, tokens: int) -> None:
        booked = 2 * halves * self.booked_percent // 100
        if self.window.admits(booked, tokens):
            count = sum(owner == name for owner, _ in self.sent)
            self.window.sent(name, frame(count, booked, tokens))
            self.sent.append((name, 2 * halves))

    @rule(size=st.integers(20, 200))
    def triton_puts_an_error(self, size: int) -> None:
        if len(self.ends) == len(self.sent) and (self.ends or [0])[-1] <= self.body:
            self.foreign, self.body = self.foreign + 1, self.body + size

    @rule(size=st.integers(1, 6000))
    def take_in(self, size: int) -> None:
        """Bytes as they come from Triton: whole messages or parts of them."""
        while size:
            if not self.ends or self.ends[-1] <= self.body:
                if len(self.ends) == len(self.sent):
                    return
                self.ends.append(self.body + self.sent[len(self.ends)][1])
            step = min(size, self.ends[-1] - self.body)
            self.body, size = self.body + step, size - step

    @precondition(lambda self: self.body > self.let_out)
    @rule(size=st.integers(1, 5000), data_frames=st.integers(1, 20))
    def let_bytes_out(self, size: int, data_frames: int) -> None:
        self.header = 137
        self.let_out += min(size, self.body - self.let_out)
        self.data_frames += data_frames

    @rule()
    def report(self) -> None:
        lag = self.body - self.let_out
        if lag == 0:
            self.data_frames_when_drained = self.data_frames
        wire = self.header + self.let_out + DATA_FRAME_HEADER * self.data_frames
        self.reported.append(record(len(self.ends) + self.foreign, self.body, wire, self.header))
        self.truth = Truth(
            lag,
            self.data_frames - self.data_frames_when_drained,
            forwarded=len(self.ends),
            delivered=sum(end <= self.let_out for end in self.ends),
            let_out=self.let_out,
        )
        self.check_order(self.window.observe(self.reported[-1]))

    @precondition(lambda self: self.reported)
    @rule(data=st.data())
    def repeat_an_old_record(self, data: st.DataObject) -> None:
        before = self.window.statistics()
        self.check_order(self.window.observe(data.draw(st.sampled_from(self.reported))))
        after = self.window.statistics()
        # Sends since then may show that what had counted as ours was not foreign, never the reverse.
        assert after.delivered_frames >= before.delivered_frames
        assert after.lag_bytes == before.lag_bytes

    def check_order(self, progress: dict[str, Progress]) -> None:
        assert all(each.delivered_frames <= each.forwarded_frames for each in progress.values())
        for name, each in progress.items():
            assert each.forwarded_frames <= sum(owner == name for owner, _ in self.sent)
        assert sum(each.forwarded_frames for each in progress.values()) == self.window.statistics().forwarded_frames

    @invariant()
    def lag_is_within_the_bound(self) -> None:
        if self.truth is not None:
            most = self.truth.lag - DATA_FRAME_HEADER * self.truth.data_frames
            assert most <= self.window.lag_bytes <= self.truth.lag

    @invariant()
    def frames_are_within_the_bound(self) -> None:
        statistics = self.window.statistics()
        assert statistics.delivered_frames <= statistics.forwarded_frames <= statistics.sent_frames
        if self.truth is None or self.foreign:
            return
        assert statistics.forwarded_frames == self.truth.forwarded
        assert statistics.delivered_frames >= self.truth.delivered
        delivered_bytes = sum(size for _, size in self.sent[: statistics.delivered_frames])
        largest = max((size for _, size in self.sent), default=0)
        assert delivered_bytes <= self.truth.let_out + DATA_FRAME_HEADER * self.truth.data_frames + largest

    @invariant()
    def the_limit_holds(self) -> None:
        in_flight = self.window.in_flight
        assert in_flight.frames == 1 or not in_flight.exceeds(MODEL_LIMIT)

    def teardown(self) -> None:
        """However it went: once drained and reported, nothing is left, and nothing has drifted."""
        self.take_in(1 << 40)
        if self.body > self.let_out:
            self.let_bytes_out(1 << 40, 1)
        self.report()
        assert self.is_drained
        assert self.window.in_flight == Size.ZERO
        assert self.window.lag_bytes == 0
        assert self.window.statistics().delivered_frames == len(self.sent)


TestEnvoyModel = EnvoyModel.TestCase
TestEnvoyModel.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
