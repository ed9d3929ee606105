from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.core.returns import BUCKETS, End, ReturnEstimator, bucket_of

AWAY = st.floats(0.0, 1000.0)


def test_buckets_double() -> None:
    assert [bucket_of(s) for s in (0.0, 0.124, 0.125, 0.25, 1.0, 511.9, 512.0, 1e9)] == [0, 0, 1, 2, 4, 12, 13, 13]


def test_before_any_data_the_prior_says_four_in_five_whatever_the_time() -> None:
    fresh = ReturnEstimator()
    for away_s in (0.0, 1.0, 100.0, 600.0):
        assert fresh.outlook(away_s).chance_of_return == pytest.approx(0.8)
    # Half of those still away end in each doubling, so who has been away for longer stays away for longer.
    assert fresh.outlook(64.0).away_s > fresh.outlook(1.0).away_s


def test_it_learns_that_nobody_comes_back() -> None:
    estimator = ReturnEstimator()
    for _ in range(200):
        estimator.learn(20.0, End.LEFT)
    assert estimator.outlook(10.0).chance_of_return < 0.1
    assert 10 / 2 < estimator.outlook(10.0).away_s < 10 * 2  # buckets double: that is how exact it is


def test_it_learns_how_long_they_stay_away() -> None:
    estimator = ReturnEstimator(memory=10_000)
    for _ in range(500):
        estimator.learn(100.0, End.RETURNED)
    assert 100 / 2 < estimator.outlook(0.0).away_s < 100 * 2


def test_a_censored_stream_counts_half_for_the_bucket_in_which_we_ended_it() -> None:
    estimator = ReturnEstimator(memory=10**9)
    for _ in range(8):
        estimator.learn(600.0, End.RETURNED)
        estimator.learn(600.0, End.LEFT)
    before = estimator.outlook(300.0).away_s  # in the bucket from 256 s
    for _ in range(8):
        estimator.learn(300.0, End.CENSORED)
    # 16 passed through it and 8 were watched through half of it: (16 + 4 prior) against (20 + 4 prior) at risk,
    # and the prior's 2 events among them.
    stays = 1 - 2 / 24
    later = 512 * 1.0
    assert estimator.outlook(300.0).away_s == pytest.approx((1 - stays) * 128 + stays * (256 + later), rel=1e-3)
    assert estimator.outlook(300.0).away_s > before


def test_it_conditions_on_the_time_already_away() -> None:
    """Nine in ten come back in two seconds; the others never do. After two seconds, few are of the nine."""
    estimator = ReturnEstimator(memory=10_000)
    for index in range(500):
        estimator.learn(
            60.0 if index % 10 == 0 else 2.0 * (index % 10) / 10, End.LEFT if index % 10 == 0 else End.RETURNED
        )
    assert estimator.outlook(0.0).chance_of_return > 0.85
    assert estimator.outlook(8.0).chance_of_return < 0.2


def test_what_we_ended_ourselves_is_not_held_against_clients() -> None:
    """Half come back after 1 s; we end the others at 4 s. Counted as leaving, the chance would be a half."""
    censored, counted = ReturnEstimator(memory=10_000), ReturnEstimator(memory=10_000)
    for _ in range(200):
        censored.learn(1.0, End.RETURNED)
        censored.learn(4.0, End.CENSORED)
        counted.learn(1.0, End.RETURNED)
        counted.learn(4.0, End.LEFT)
    assert censored.outlook(0.0).chance_of_return > 0.85
    assert counted.outlook(0.0).chance_of_return < 0.55


def test_the_past_fades() -> None:
    estimator = ReturnEstimator(memory=50)
    for _ in range(500):
        estimator.learn(1.0, End.LEFT)
    for _ in range(150):
        estimator.learn(1.0, End.RETURNED)
    assert estimator.outlook(0.0).chance_of_return > 0.85


@given(st.lists(st.tuples(AWAY, st.sampled_from(End)), max_size=60), AWAY)
def test_it_is_always_a_probability_and_a_time(history: list[tuple[float, End]], away_s: float) -> None:
    estimator = ReturnEstimator(memory=20)
    for length_s, end in history:
        estimator.learn(length_s, end)
    outlook = estimator.outlook(away_s)
    assert 0 < outlook.chance_of_return < 1
    assert 0 < outlook.away_s < 1e5


@given(st.lists(st.tuples(AWAY, st.sampled_from(End)), max_size=40), AWAY)
def test_one_more_that_came_back_never_lowers_the_chance(history: list[tuple[float, End]], away_s: float) -> None:
    """Without fading: the chance at the beginning only rises with a return, and only falls with a leaving."""
    before = ReturnEstimator(memory=10**9)
    for length_s, end in history:
        before.learn(length_s, end)
    chance = before.outlook(away_s).chance_of_return
    before.learn(away_s, End.RETURNED)
    assert before.outlook(away_s).chance_of_return >= chance - 1e-9


def test_the_last_bucket_has_an_end_too() -> None:
    estimator = ReturnEstimator()
    estimator.learn(1e6, End.RETURNED)
    assert estimator.outlook(1e6).chance_of_return > 0.8
    assert bucket_of(1e6) == BUCKETS - 1


def test_no_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="memory"):
        ReturnEstimator(memory=0)
