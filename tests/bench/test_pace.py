from __future__ import annotations

import pytest

from sluiceway.cli.bench.pace import Pace, paused
from sluiceway.cli.bench.readers import Reading


def reading(opened_at, arrivals, finish_reason="length"):
    return Reading(
        client_id="r",
        opened_at=opened_at,
        arrivals=arrivals,
        texts=["x"] * len(arrivals),
        token_counts=[1] * len(arrivals),
        finish_reason=finish_reason,
    )


def test_only_what_lies_inside_the_window_counts():
    pace = Pace().add([reading(1.0, [1.5, 1.75, 4.0]), reading(3.0, [3.25, 3.5])], 2.0, 5.0)
    assert pace.ttft == [0.25]
    assert pace.gaps == [2.25, 0.25]
    assert pace.requests == 1


def test_a_stall_that_outlasts_the_window_counts_as_long_as_it_was_seen():
    pace = Pace().add([reading(2.0, [2.5], finish_reason=""), reading(3.0, [], finish_reason="")], 2.0, 5.0)
    assert pace.gaps == [2.5]
    assert pace.ttft == [0.5, 2.0]


def test_a_stall_that_began_before_the_window_counts():
    pace = Pace().add([reading(0.0, [0.5], finish_reason=""), reading(1.0, [], finish_reason="")], 2.0, 5.0)
    assert pace.gaps == [4.5]
    assert pace.ttft == [4.0]


def test_a_request_cut_off_by_the_end_of_the_window_is_no_stall():
    pace = Pace().add([reading(4.9, [], finish_reason=""), reading(4.0, [4.5, 4.9], finish_reason="")], 2.0, 5.0)
    assert pace.ttft == [0.5]
    assert pace.gaps == [pytest.approx(0.4)]


def test_paused_counts_by_client_name_and_state():
    streams = [
        {"client_id": "never-0", "state": "swapped"},
        {"client_id": "never-1", "state": "preempted"},
        {"client_id": "never-2", "state": "streaming"},
        {"client_id": "reader-0", "state": "paused"},
        {"client_id": None, "state": "paused"},
    ]
    assert paused({"streams": streams}, "never") == 2
