from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.core.limits import Size
from sluiceway.core.watermark import Watermark

HIGH = Size(bytes=100, tokens=50, frames=20)
LOW = Size(bytes=40, tokens=10, frames=5)


def size(bytes: int = 0, tokens: int = 0, frames: int = 0) -> Size:  # noqa: A002
    return Size(bytes=bytes, tokens=tokens, frames=frames)


@pytest.mark.parametrize("at_high", [size(bytes=100), size(tokens=50), size(frames=20), HIGH])
def test_at_high_exactly_is_not_above(at_high: Size) -> None:
    watermark = Watermark(HIGH, LOW)
    assert not watermark.update(at_high)
    assert not watermark.is_above


@pytest.mark.parametrize("over", [size(bytes=101), size(tokens=51), size(frames=21)])
def test_one_over_high_in_any_one_unit_is_above(over: Size) -> None:
    watermark = Watermark(HIGH, LOW)
    assert watermark.update(over)
    assert watermark.is_above


@pytest.mark.parametrize("over_low", [size(bytes=41), size(tokens=11), size(frames=6)])
def test_stays_above_until_every_unit_is_down_at_low(over_low: Size) -> None:
    watermark = Watermark(HIGH, LOW)
    watermark.update(size(bytes=101))
    assert watermark.update(over_low)
    assert not watermark.update(LOW)


def test_between_low_and_high_nothing_changes() -> None:
    watermark = Watermark(HIGH, LOW)
    assert [watermark.update(size(bytes=b)) for b in (60, 100, 101, 60, 41, 40, 60, 100)] == [
        False, False, True, True, True, False, False, False,
    ]  # fmt: skip


def test_high_and_low_may_be_equal() -> None:
    watermark = Watermark(LOW, LOW)
    assert watermark.update(size(bytes=41))
    assert not watermark.update(size(bytes=40))


@pytest.mark.parametrize(
    ("low", "message"),
    [
        (size(bytes=101), "low watermark in bytes is 101, above high \\(100\\)"),
        (size(tokens=51), "low watermark in tokens is 51, above high \\(50\\)"),
        (size(frames=21), "low watermark in frames is 21, above high \\(20\\)"),
        (size(bytes=-1), "low watermark in bytes is -1"),
    ],
)
def test_low_above_high_or_negative_is_refused_by_unit(low: Size, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Watermark(HIGH, low)


@given(st.lists(st.builds(Size, bytes=st.integers(0, 150), tokens=st.integers(0, 80), frames=st.integers(0, 30))))
def test_changes_only_where_the_marks_are_passed(backlogs: list[Size]) -> None:
    watermark = Watermark(HIGH, LOW)
    before = False
    for backlog in backlogs:
        above = watermark.update(backlog)
        if above and not before:
            assert backlog.exceeds(HIGH)
        if before and not above:
            assert not backlog.exceeds(LOW)
        before = above


def test_a_grant_raises_high_in_bytes_and_waives_the_other_units() -> None:
    mark = Watermark(Size(bytes=10, tokens=5, frames=5), Size(bytes=4, tokens=2, frames=2))
    assert mark.update(Size(bytes=11, tokens=1, frames=1))
    mark.grant(20, Size(bytes=8, tokens=6, frames=1))
    assert not mark.update(Size(bytes=30, tokens=99, frames=99))
    assert mark.update(Size(bytes=31, tokens=1, frames=1))
    assert mark.granted_bytes == 20
    mark.grant(5, Size(bytes=40, tokens=1, frames=1))  # what was on its way does not use the grant up
    assert mark.granted_bytes == 25
    assert not mark.update(Size(bytes=45, tokens=1, frames=1))
    assert mark.update(Size(bytes=46, tokens=1, frames=1))


def test_a_grant_ends_at_low_in_every_unit() -> None:
    mark = Watermark(Size(bytes=10, tokens=5, frames=5), Size(bytes=4, tokens=2, frames=2))
    mark.update(Size(bytes=11, tokens=1, frames=1))
    mark.grant(20, Size(bytes=11, tokens=1, frames=1))
    assert not mark.update(Size(bytes=4, tokens=3, frames=2))
    assert mark.granted_bytes == 20
    assert not mark.update(Size(bytes=4, tokens=2, frames=2))
    assert mark.granted_bytes == 0
    assert mark.update(Size(bytes=11, tokens=1, frames=1))
