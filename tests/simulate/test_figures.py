"""The figures of an arm, on outcomes that can be added up by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sluiceway.cli.simulate.figures import Outcome, Targets, figures

TARGETS = Targets(ttft_s=1.0, tpot_s=0.125)  # in eighths, which floats hold exactly
GOOD = Outcome(
    request_id="good",
    is_slow=False,
    arrived_at=10.0,
    first_token_at=10.5,
    finished_at=11.5,
    asked_tokens=9,
    generated_tokens=9,
    delivered_tokens=9,
    finish_reason="length",
)


def test_both_targets_count_and_so_does_the_whole_answer() -> None:
    late = replace(GOOD, first_token_at=11.01, finished_at=12.0)
    slow_tokens = replace(GOOD, finished_at=10.5 + 8 * 0.13)
    cut = replace(GOOD, finish_reason="stalled")
    never_came = replace(GOOD, first_token_at=None, finished_at=None, delivered_tokens=0, finish_reason="")
    seen = figures([GOOD, late, slow_tokens, cut, never_came], TARGETS, ended_at=20.0)
    assert seen.goodput == 1 / 5
    assert seen.normal_unfinished == 2


def test_targets_are_met_exactly_at_their_value() -> None:
    seen = figures([replace(GOOD, first_token_at=11.0, finished_at=12.0)], TARGETS, ended_at=20.0)
    assert seen.goodput == 1
    assert seen.tpot_p50_s == 0.125


def test_who_still_waits_counts_with_the_wait_so_far() -> None:
    waiting = replace(GOOD, arrived_at=12.0, first_token_at=None, finished_at=None, finish_reason="")
    assert figures([waiting], TARGETS, ended_at=20.0).ttft_p50_s == 8.0


def test_slow_readers_do_not_count_for_goodput_and_times() -> None:
    slow = replace(GOOD, is_slow=True, first_token_at=19.0, finished_at=None, finish_reason="")
    seen = figures([GOOD, slow], TARGETS, ended_at=20.0)
    assert (seen.goodput, seen.normal, seen.slow, seen.slow_complete) == (1.0, 1, 1, 0)
    assert seen.ttft_p99_s == 0.5
    assert seen.longest_wait_s == 9.0  # but a wait is a wait


def test_wasted_is_what_was_made_for_those_that_left_and_never_reached_them() -> None:
    left = replace(
        GOOD, is_slow=True, generated_tokens=300, delivered_tokens=40, left_at=12.0, finish_reason="cancelled"
    )
    stuck = replace(GOOD, is_slow=True, generated_tokens=300, delivered_tokens=40, finished_at=None, finish_reason="")
    assert figures([GOOD, left, stuck], TARGETS, ended_at=20.0).wasted_tokens == 260


def test_throughput_counts_what_was_generated_until_the_last_normal_reader_was_done() -> None:
    seen = figures([GOOD], TARGETS, ended_at=20.0, generated=[(10.0, 0), (12.0, 100), (20.0, 5000)])
    assert seen.duration_s == 1.5
    assert seen.throughput_tokens_per_s == pytest.approx(75 / 1.5)


def test_an_arm_that_does_not_finish_is_measured_to_the_end() -> None:
    stuck = replace(GOOD, finished_at=None, finish_reason="")
    seen = figures([GOOD, stuck], TARGETS, ended_at=20.0, generated=[(10.0, 0), (20.0, 100)])
    assert seen.duration_s == 10.0
    assert seen.throughput_tokens_per_s == 10.0


def test_waits_by_tenant_leave_out_who_left_before_it_was_served() -> None:
    gone = replace(GOOD, tenant="a", first_token_at=None, finished_at=None, left_at=19.0, finish_reason="cancelled")
    other = replace(GOOD, tenant="b", first_token_at=13.0)
    seen = figures([replace(GOOD, tenant="a"), gone, other], TARGETS, ended_at=20.0)
    assert seen.longest_wait_by_tenant_s == {"a": 0.5, "b": 3.0}


def test_nobody_there_is_not_a_zero() -> None:
    seen = figures([], TARGETS, ended_at=1.0)
    assert math.isnan(seen.goodput)
    assert seen.as_json()["goodput"] is None
