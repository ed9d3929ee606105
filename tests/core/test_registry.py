from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.streams import LIMITS, Stream
from sluiceway.core.limits import Limits, Size
from sluiceway.core.registry import AdmissionRefused, Registry
from sluiceway.core.sender import BoundedSender


@dataclass
class Deadlined:
    """All that the registry asks of a sender."""

    deadline: float | None = None
    backlog: Size = Size.ZERO

    def next_deadline(self) -> float | None:
        return self.deadline


def sender(deadline: float | None = None, backlog_bytes: int = 0) -> BoundedSender:
    return cast("BoundedSender", Deadlined(deadline, Size(bytes=backlog_bytes, tokens=0, frames=0)))


def registry(max_streams: int = 3, max_buffered_bytes: int = 1_000, per_stream_bytes: int = 100) -> Registry:
    return Registry(max_streams, max_buffered_bytes, per_stream_bytes, retry_after_s=2.5)


def test_admitted_streams_are_found_and_removed_ones_are_not() -> None:
    streams = registry()
    one = sender()
    streams.admit("a", one)
    assert streams.get("a") is one
    assert "a" in streams
    assert list(streams) == [("a", one)]
    streams.remove("a")
    streams.remove("a")
    assert streams.get("a") is None
    assert "a" not in streams
    assert len(streams) == 0


def test_one_stream_too_many_is_refused_with_the_limit_and_when_to_come_back() -> None:
    streams = registry()
    for request_id in "abc":
        streams.admit(request_id, sender())
    with pytest.raises(AdmissionRefused, match=r"max_streams: 4 needed, 3 allowed; try again in 2\.5 s") as refused:
        streams.admit("d", sender())
    assert (refused.value.limit, refused.value.value, refused.value.maximum) == ("max_streams", 4, 3)
    assert refused.value.retry_after_s == 2.5
    assert streams.get("d") is None
    streams.remove("b")
    streams.admit("d", sender())


def test_the_worst_case_of_all_must_fit_the_budget_to_the_last_byte() -> None:
    streams = registry(max_streams=100, max_buffered_bytes=300)
    for request_id in "abc":
        streams.admit(request_id, sender())
    with pytest.raises(AdmissionRefused) as refused:
        streams.check_room()
    assert (refused.value.limit, refused.value.value, refused.value.maximum) == ("max_buffered_bytes", 400, 300)


def test_an_id_is_open_once() -> None:
    streams = registry()
    streams.admit("a", sender())
    with pytest.raises(ValueError, match="'a' is open already"):
        streams.admit("a", sender())


def test_totals_count_what_came_in_and_what_was_turned_away() -> None:
    streams = registry(max_streams=2)
    streams.admit("a", sender(backlog_bytes=7))
    streams.admit("b", sender(backlog_bytes=8))
    with pytest.raises(AdmissionRefused):
        streams.admit("c", sender())
    streams.remove("a")
    totals = streams.totals()
    assert (totals.accepted, totals.refused, totals.open_streams, totals.peak_open_streams) == (2, 1, 1, 2)
    assert (totals.reserved_bytes, totals.buffered_bytes) == (100, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_streams": 0}, "max_streams is 0"),
        ({"per_stream_bytes": 0}, "per_stream_bytes is 0"),
        ({"max_buffered_bytes": 99}, r"max_buffered_bytes is 99, less than one stream may need \(100\)"),
    ],
)
def test_limits_that_admit_nobody_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry(**changes)


def test_the_earliest_deadline_of_all_streams() -> None:
    streams = registry()
    assert streams.next_deadline() is None
    streams.admit("a", sender(30.0))
    streams.admit("b", sender(20.0))
    streams.admit("c", sender(None))
    assert streams.next_deadline() == 20.0
    streams.remove("b")
    assert streams.next_deadline() == 30.0


def test_a_deadline_that_moves_is_followed_in_both_directions() -> None:
    streams = registry()
    moving = Deadlined(30.0)
    streams.admit("a", cast("BoundedSender", moving))
    for deadline in (10.0, 50.0, None, 40.0):
        moving.deadline = deadline
        streams.touch("a")
        assert streams.next_deadline() == deadline


def test_due_names_each_stream_once() -> None:
    streams = registry()
    streams.admit("a", sender(10.0))
    streams.admit("b", sender(20.0))
    streams.admit("c", sender(30.0))
    assert streams.due(9.9) == []
    assert streams.due(20.0) == ["a", "b"]
    assert streams.due(20.0) == []
    streams.touch("a")
    assert streams.due(20.0) == ["a"]


def test_an_unknown_id_is_no_error() -> None:
    streams = registry()
    streams.touch("gone")
    assert streams.next_deadline() is None


def test_an_id_that_comes_back_does_not_inherit_a_deadline() -> None:
    streams = registry()
    streams.admit("a", sender(10.0))
    streams.remove("a")
    streams.admit("a", sender(20.0))
    assert streams.next_deadline() == 20.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.one_of(st.none(), st.floats(0, 100)),
            st.sampled_from(["move", "reopen", "ask", "due"]),
        ),
        max_size=60,
    )
)
def test_the_heap_agrees_with_a_plain_search(steps: list[tuple[str, float | None, str]]) -> None:
    streams = registry()
    plain = {request_id: Deadlined() for request_id in "abc"}
    for request_id, stream in plain.items():
        streams.admit(request_id, cast("BoundedSender", stream))
    for request_id, deadline, step in steps:
        plain[request_id].deadline = deadline
        if step == "reopen":
            streams.remove(request_id)
            streams.admit(request_id, cast("BoundedSender", plain[request_id]))
        streams.touch(request_id)
        known = [stream.deadline for stream in plain.values() if stream.deadline is not None]
        if step == "due":
            due = streams.due(50.0)
            assert sorted(due) == sorted(i for i, s in plain.items() if s.deadline is not None and s.deadline <= 50.0)
            for name in due:
                streams.touch(name)
        assert streams.next_deadline() == min(known, default=None)


def test_the_heap_does_not_grow_with_events() -> None:
    streams = registry()
    moving = Deadlined(1.0)
    streams.admit("a", cast("BoundedSender", moving))
    for step in range(10_000):
        moving.deadline = 1.0 + step
        streams.touch("a")
    assert len(streams._heap) == 1


@pytest.mark.parametrize("chosen", [LIMITS, Limits()])
def test_a_stream_that_nobody_reads_stays_within_what_admission_reserved(chosen: Limits) -> None:
    stream = Stream(chosen)
    stream.deliver()
    for _ in range(10_000):
        if "PauseGeneration" in stream.kinds():
            break
        stream.produce(b"several words in one token ")
    stream.produce(b"on its way already ")
    assert 0 < stream.sender.statistics(100.0).peak_backlog_bytes <= chosen.max_stream_bytes
