"""The delivery window against a model of Envoy that knows the truth."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluiceway.core.commands import Frame
from sluiceway.core.events import Progress
from sluiceway.core.limits import Size
from sluiceway.core.record import Record
from sluiceway.core.window import DeliveryWindow

LIMIT = Size(bytes=1000, tokens=100, frames=10)
DATA_FRAME_HEADER = 9


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
        assert window.statistics() == before


class EnvoyModel(RuleBasedStateMachine):
    """Envoy: forwards whole messages, lets bytes out in DATA frames of any size, reports at any time.

    The bound under test (docs/delivery-signal.md): with F DATA frames let out since the last record at
    which nothing was held, true lag - 9 F <= estimated lag <= true lag.
    """

    def __init__(self) -> None:
        super().__init__()
        self.window = DeliveryWindow(Size(bytes=2000, tokens=10_000, frames=20))
        self.requests = ["a", "b"]
        for name in self.requests:
            self.window.open(name)
        self.header = 0
        self.queue: list[tuple[str, int]] = []  # sent, not forwarded
        self.sent: list[tuple[str, int]] = []
        self.messages = self.foreign = self.body = self.let_out = self.data_frames = 0
        self.frames_when_drained = 0
        self.reported: list[Record] = []
        self.reported_truth: tuple[int, int, int] | None = None  # lag, DATA frames since drained, forwarded

    @rule(name=st.sampled_from(["a", "b"]), size=st.integers(20, 3000), tokens=st.integers(0, 50))
    def send(self, name: str, size: int, tokens: int) -> None:
        if not self.window.admits(size, tokens):
            return
        count = sum(owner == name for owner, _ in self.sent)
        self.window.sent(name, frame(count, size, tokens))
        self.queue.append((name, size))
        self.sent.append((name, size))

    @rule(size=st.integers(20, 200))
    def triton_puts_an_error(self, size: int) -> None:
        if not self.queue:
            self.messages, self.foreign, self.body = self.messages + 1, self.foreign + 1, self.body + size

    @precondition(lambda self: self.queue)
    @rule()
    def forward(self) -> None:
        _, size = self.queue.pop(0)
        self.messages, self.body = self.messages + 1, self.body + size

    @precondition(lambda self: self.body > self.let_out)
    @rule(size=st.integers(1, 5000))
    def let_out_bytes(self, size: int) -> None:
        self.header = 137
        self.let_out += min(size, self.body - self.let_out)
        self.data_frames += 1

    @rule()
    def report(self) -> None:
        lag = self.body - self.let_out
        if lag == 0:
            self.frames_when_drained = self.data_frames
        wire = self.header + self.let_out + DATA_FRAME_HEADER * self.data_frames
        made = record(self.messages, self.body, wire, self.header)
        self.reported.append(made)
        self.reported_truth = (lag, self.data_frames - self.frames_when_drained, len(self.sent) - len(self.queue))
        self.window.observe(made)

    @precondition(lambda self: self.reported)
    @rule(data=st.data())
    def repeat_an_old_record(self, data: st.DataObject) -> None:
        self.window.observe(data.draw(st.sampled_from(self.reported)))

    @invariant()
    def lag_is_within_the_bound(self) -> None:
        if self.reported_truth is not None:
            lag, frames, _ = self.reported_truth
            assert lag - DATA_FRAME_HEADER * frames <= self.window.lag_bytes <= lag

    @invariant()
    def levels_are_ordered(self) -> None:
        statistics = self.window.statistics()
        assert statistics.delivered_frames <= statistics.forwarded_frames <= statistics.sent_frames
        if self.reported_truth is not None and self.foreign == statistics.foreign_messages:
            assert statistics.forwarded_frames == self.reported_truth[2]

    @invariant()
    def drained_means_nothing_in_flight(self) -> None:
        if not self.queue and self.body == self.let_out:
            self.report()
            assert self.window.in_flight == Size.ZERO
            assert self.window.lag_bytes == 0

    @invariant()
    def the_limit_holds(self) -> None:
        statistics = self.window.statistics()
        alone = statistics.in_flight.frames == 1
        assert alone or not statistics.in_flight.exceeds(Size(bytes=2000, tokens=10_000, frames=20))


TestEnvoyModel = EnvoyModel.TestCase
TestEnvoyModel.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
