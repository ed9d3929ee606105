from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sluiceway.core.record import Record
from sluiceway.delivery.tracker import TooMuchNewsError, Tracker


def record(rpc_id: str = "a", messages: int = 0, *, ended: bool = False) -> Record:
    return Record(rpc_id, messages, 10 * messages, 10 * messages, ended=ended)


@pytest.fixture
def tracker() -> Tracker:
    return Tracker(record_timeout_s=3.0, max_rpcs=4)


class TestNews:
    def test_only_changes_are_news(self, tracker: Tracker) -> None:
        tracker.take(record(messages=1), 0.0)
        assert tracker.take_news() == [record(messages=1)]
        tracker.take(record(messages=1), 0.1)
        assert tracker.take_news() == []
        assert tracker.records == 2

    def test_unread_news_of_one_rpc_are_the_latest(self, tracker: Tracker) -> None:
        for messages in (1, 2, 3):
            tracker.take(record(messages=messages), 0.0)
        assert tracker.take_news() == [record(messages=3)]

    def test_an_end_is_never_replaced_and_frees_the_place(self, tracker: Tracker) -> None:
        tracker.take(record(messages=1), 0.0)
        tracker.take(record(messages=2, ended=True), 0.1)
        tracker.take(record(messages=1), 0.1)  # late
        tracker.expire(0.1)
        assert tracker.take_news() == [record(messages=2, ended=True)]

    def test_an_end_of_a_stream_never_seen_before(self, tracker: Tracker) -> None:
        tracker.take(record(ended=True), 0.0)
        assert tracker.take_news() == [record(ended=True)]
        assert tracker.open_rpcs == 0


class TestExpiry:
    def test_once_after_the_timeout(self, tracker: Tracker) -> None:
        tracker.take(record("a", 1), 0.0)
        tracker.take(record("b", 1), 1.0)
        tracker.take_news()
        for at in (1.0, 2.0, 2.9):
            tracker.expire(at)
        assert tracker.take_news() == []
        tracker.expire(3.0)
        assert [(each.rpc_id, each.expired, each.messages) for each in tracker.take_news()] == [("a", True, 1)]
        tracker.expire(3.5)
        assert tracker.take_news() == []
        tracker.expire(4.0)
        assert [each.rpc_id for each in tracker.take_news()] == ["b"]

    def test_each_record_starts_the_time_anew(self, tracker: Tracker) -> None:
        for at in (0.0, 1.0, 2.0, 3.0, 4.0):
            tracker.take(record(messages=1), at)
            tracker.expire(at)
        tracker.expire(5.0)
        assert tracker.open_rpcs == 1

    def test_back_after_an_expiry_is_news(self, tracker: Tracker) -> None:
        tracker.take(record(messages=1), 0.0)
        for at in (0.0, 1.0, 2.0, 3.0):
            tracker.expire(at)
        tracker.take_news()
        tracker.take(record(messages=1), 3.1)
        assert tracker.take_news() == [record(messages=1)]

    def test_nobody_expires_because_we_were_asleep(self, tracker: Tracker) -> None:
        tracker.take(record("a"), 0.0)
        tracker.expire(0.1)
        tracker.expire(60.0)  # suspended, or starved
        assert not any(each.expired for each in tracker.take_news())
        tracker.take(record("b"), 60.1)
        for at in (61.0, 62.0):
            tracker.expire(at)
        tracker.take_news()
        tracker.expire(63.0)
        assert [each.rpc_id for each in tracker.take_news()] == ["a"]


class TestBounds:
    def test_rpcs_above_the_cap_are_ignored_and_counted(self, tracker: Tracker) -> None:
        for name in "abcdef":
            tracker.take(record(name), 0.0)
        assert (tracker.open_rpcs, tracker.ignored, len(tracker.take_news())) == (4, 2, 4)
        tracker.take(record("a", ended=True), 0.1)
        tracker.take(record("e"), 0.2)
        assert [each.rpc_id for each in tracker.take_news()] == ["a", "e"]

    def test_unread_ends_without_limit_are_refused(self, tracker: Tracker) -> None:
        for number in range(8):
            tracker.take(record(str(number), ended=True), 0.0)
        with pytest.raises(TooMuchNewsError, match="8 RPCs unread"):
            tracker.take(record("8", ended=True), 0.0)


class Pipe(RuleBasedStateMachine):
    """However slowly the parent reads: it learns every end, and ends up with the latest counters."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = Tracker(record_timeout_s=1e9, max_rpcs=1000)
        self.truth: dict[str, Record] = {}
        self.known: dict[str, Record] = {}
        self.next_rpc = 0

    @rule()
    def opens(self) -> None:
        self.next_rpc += 1
        self.report(record(str(self.next_rpc)))

    @rule(data=st.data(), growth=st.integers(0, 3), ended=st.booleans())
    def goes_on(self, data: st.DataObject, growth: int, ended: bool) -> None:
        if running := [each for each in self.truth.values() if not each.ended]:
            chosen = data.draw(st.sampled_from(running))
            self.report(record(chosen.rpc_id, chosen.messages + growth, ended=ended))

    def report(self, new: Record) -> None:
        self.truth[new.rpc_id] = new
        self.tracker.take(new, 0.0)

    @rule()
    def parent_reads(self) -> None:
        self.known |= {each.rpc_id: each for each in self.tracker.take_news()}
        assert self.known == self.truth

    @invariant()
    def tracks_what_is_open(self) -> None:
        assert self.tracker.open_rpcs == sum(not each.ended for each in self.truth.values())


TestPipe = Pipe.TestCase
TestPipe.settings = settings(max_examples=100, deadline=None)
