from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.core.weight import Weight, WeightSettings, weight

UNREAD = st.integers(0, 5000)
RATES = st.one_of(st.none(), st.just(0.0), st.floats(0.001, 10_000))


@pytest.mark.parametrize(
    ("unread", "rate", "expected"),
    [
        (8, 50.0, 1.0),  # a good reader: the delay of the signal
        (16, 0.0, 1.0),  # too few to be a cushion
        (199, 100.0, 1.0),  # just under two seconds
        (200, 100.0, 1 / 2),
        (400, 100.0, 1 / 4),
        (800, 100.0, 1 / 8),
        (1600, 100.0, 1 / 16),
        (100_000, 1.0, 1 / 16),
        (17, 0.0, 1 / 16),  # reads nothing at all
        (5000, None, 1.0),  # not known: counts as good
        (17, 5e-324, 1 / 16),
    ],
)
def test_each_doubling_of_the_cushion_halves_the_weight(unread: int, rate: float | None, expected: float) -> None:
    assert weight(unread, rate) == expected
    fresh = Weight()
    assert fresh.update(unread, rate) is (expected != 1.0)
    assert fresh.value == expected


@given(st.floats(1.0, 2000.0), st.floats(0.0, 1.9))
def test_a_reader_that_keeps_up_always_has_full_weight(rate: float, lag_s: float) -> None:
    """Whatever its rate: what is unread is what the signal has not confirmed yet."""
    assert weight(int(rate * lag_s), rate) == 1.0


def test_it_rises_again_only_well_below_where_it_fell() -> None:
    one = Weight()
    one.update(200, 100.0)
    assert not one.update(199, 100.0)
    assert not one.update(134, 100.0)
    assert one.value == 1 / 2
    assert one.update(133, 100.0)
    assert one.value == 1.0


@given(UNREAD, RATES, st.lists(st.tuples(st.integers(-10, 10), st.floats(0.95, 1.05)), max_size=30))
def test_around_a_steady_cushion_it_changes_twice_at_most(
    unread: int, rate: float | None, noise: list[tuple[int, float]]
) -> None:
    one = Weight()
    changes = 0
    for by, factor in noise:
        near = unread + by * unread // 200  # 5 % up and down, and 5 % in the rate: less than the hysteresis
        changes += one.update(near, None if rate is None else rate * factor)
    assert changes <= 2


@given(UNREAD, UNREAD, RATES)
def test_more_unread_never_weighs_more(first: int, second: int, rate: float | None) -> None:
    assert weight(min(first, second), rate) >= weight(max(first, second), rate)


@given(st.lists(st.tuples(UNREAD, RATES), max_size=30))
def test_hysteresis_keeps_it_between_its_two_thresholds(history: list[tuple[int, float | None]]) -> None:
    one = Weight()
    for unread, rate in history:
        one.update(unread, rate)
        assert weight(unread * 3 // 2 + 2, rate) <= one.value <= weight(unread, rate)


@pytest.mark.parametrize(
    "wrong", [{"full_s": 0.0}, {"lowest_exponent": 11}, {"min_unread_tokens": -1}, {"hysteresis": 0.9}]
)
def test_contradictions_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WeightSettings(**wrong)  # type: ignore[arg-type]
