from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.engine.stop_strings import StopMatcher

CASES = [
    (["END"], "some text END rest", "some text ", True),
    (["abcd", "bc"], "xabcd", "xa", True),
    (["bcd", "abcd"], "xabcdy", "x", True),
    (["aab"], "aaaab", "aa", True),
    (["👩‍👩‍👧"], "x👩‍👩‍👦y👩‍👩‍👧z", "x👩‍👩‍👦y", True),
    (["\n\n", "###"], "a\nb##c\n", "a\nb##c\n", False),
]


def run(stops: list[str], pieces: list[bytes]) -> tuple[bytes, bool]:
    matcher = StopMatcher(stops)
    shown = b""
    for piece in pieces:
        text, stopped = matcher.feed(piece)
        shown += text
        if stopped:
            return shown, True
    return shown + matcher.flush(), False


@pytest.mark.parametrize(("stops", "text", "shown", "stopped"), CASES)
def test_every_split_in_three_gives_the_same(stops: list[str], text: str, shown: str, stopped: bool) -> None:
    data = text.encode()
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            pieces = [data[:first], data[first:second], data[second:]]
            assert run(stops, pieces) == (shown.encode(), stopped)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.text("ab", max_size=20),
    st.lists(st.integers(0, 20)),
)
def test_splits_never_matter(stops: list[str], text: str, cuts: list[int]) -> None:
    data = text.encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    assert run(stops, pieces) == run(stops, [data[at : at + 1] for at in range(len(data))])


def test_only_a_possible_beginning_is_held_back() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed(b"say E") == (b"say ", False)
    assert matcher.feed(b"N") == (b"", False)
    assert matcher.feed(b"T") == (b"ENT", False)
    assert matcher.flush() == b""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="stop"):
        StopMatcher(["a", ""])
