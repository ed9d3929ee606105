from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.core.drain import DrainRate
from sluiceway.core.limits import Size

SOME = Size(bytes=1, tokens=1, frames=1)


def size(amount: int) -> Size:
    return Size(bytes=100 * amount, tokens=amount, frames=0)


def test_a_steady_reader_has_its_rate() -> None:
    drain = DrainRate(0.0)
    drain.observe(Size.ZERO, SOME, 0.0)
    for tick in range(1, 101):
        drain.observe(size(2 * tick), SOME, tick / 10)
    assert drain.tokens_per_s(10.0) == pytest.approx(20)
    assert drain.bytes_per_s(10.0) == pytest.approx(2000)


def test_time_with_nothing_to_deliver_does_not_count() -> None:
    drain = DrainRate(0.0)
    drain.observe(Size.ZERO, SOME, 0.0)
    drain.observe(size(20), Size.ZERO, 2.0)  # all read, then nothing is produced for 40 s
    assert drain.tokens_per_s(42.0) == pytest.approx(10)
    assert drain.busy_s(42.0) == pytest.approx(2)


def test_what_left_the_window_is_forgotten() -> None:
    drain = DrainRate(0.0, window_s=10.0, buckets=5)
    drain.observe(Size.ZERO, SOME, 0.0)
    drain.observe(size(100), SOME, 1.0)
    assert drain.tokens_per_s(9.9) == pytest.approx(100 / 9.9)
    assert drain.tokens_per_s(10.1) == 0  # the first two seconds are out, and with them everything that it took
    assert drain.bytes_per_s(10.1) == 0
    assert drain.busy_s(10.1) == pytest.approx(8.1)


def test_a_gap_longer_than_the_window_leaves_a_window_of_backlog() -> None:
    drain = DrainRate(0.0, window_s=10.0, buckets=5)
    drain.observe(size(7), SOME, 0.5)
    assert drain.tokens_per_s(1000.0) == 0
    assert 8.0 <= drain.busy_s(1000.0) <= 10.0


def test_nothing_is_known_before_a_second_of_backlog_and_rates_are_not_absurd_before() -> None:
    drain = DrainRate(0.0)
    drain.observe(Size.ZERO, SOME, 0.0)
    drain.observe(size(5), SOME, 0.001)
    assert not drain.is_known(0.9)
    assert drain.tokens_per_s(0.002) == 5
    assert drain.is_known(1.0)


def test_a_clock_that_goes_back_changes_nothing() -> None:
    drain = DrainRate(0.0)
    drain.observe(size(3), SOME, 5.0)
    drain.observe(size(4), SOME, 2.0)
    assert drain.tokens_per_s(5.0) == 4
    assert drain.busy_s(4.0) == 0


@pytest.mark.parametrize(("window_s", "buckets"), [(0, 5), (-1, 5), (10, 0)])
def test_an_empty_window_is_refused(window_s: float, buckets: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        DrainRate(0.0, window_s=window_s, buckets=buckets)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 50), st.booleans()), max_size=40))
def test_it_agrees_with_a_history_that_forgets_nothing(steps: list[tuple[int, int, bool]]) -> None:
    """Tenths of a second, tokens, whether anything is left. Window 10 s in 5 buckets."""
    drain = DrainRate(0.0, window_s=10.0, buckets=5)
    busy_tenths: list[int] = []
    took: list[tuple[int, int]] = []
    at = total = 0
    is_busy = False
    for wait, tokens, left in steps:
        busy_tenths += [at + i for i in range(wait) if is_busy]
        at += wait
        total += tokens
        took.append((at, tokens))
        drain.observe(size(total), SOME if left else Size.ZERO, at / 10)
        is_busy = left
        begin = (at // 20 - 4) * 20  # of the oldest of five buckets of two seconds
        busy_s = sum(tenth >= begin for tenth in busy_tenths) / 10
        tokens_in = sum(amount for when, amount in took if when >= begin)
        assert drain.busy_s(at / 10) == pytest.approx(busy_s, abs=1e-6)
        assert drain.tokens_per_s(at / 10) == pytest.approx(tokens_in / max(busy_s, 1.0), abs=1e-6)
