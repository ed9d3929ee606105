from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.core.framing import FrameBuffer
from sluiceway.core.limits import Size

OVERHEAD = 10
TEXTS = [
    "plain ascii",
    "漢字かな交じり文",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, e\u0301 accent",
    "\x00 nul and \ufffd of its own",
]


def frames_of(buffer: FrameBuffer) -> list[Frame]:
    frames = []
    while (frame := buffer.take()) is not None:
        frames.append(frame)
    return frames


def text_of(frames: list[Frame]) -> str:
    return "".join(frame.text for frame in frames)


def check_frames(frames: list[Frame], max_frame_bytes: int) -> None:
    """What holds for any frames of one answer that has ended."""
    assert [frame.sequence for frame in frames] == list(range(len(frames)))
    assert [frame.finish_reason is not None for frame in frames] == [False] * (len(frames) - 1) + [True]
    index = 0
    for frame in frames:
        assert frame.first_token_index == index
        index += len(frame.token_ids)
        assert frame.wire_bytes == len(frame.text.encode()) + OVERHEAD <= max_frame_bytes


def test_nothing_pending_gives_no_frame() -> None:
    buffer = FrameBuffer(100, OVERHEAD)
    assert buffer.take() is None
    assert buffer.head is None
    assert buffer.pending == Size.ZERO


def test_increments_that_wait_become_one_frame() -> None:
    buffer = FrameBuffer(100, OVERHEAD)
    buffer.append((1,), b"ab")
    buffer.append((2, 3), b"cde")
    assert buffer.pending == Size(bytes=5, tokens=3, frames=0)
    assert buffer.head == Size(bytes=15, tokens=3, frames=1)
    assert buffer.take() == Frame(0, 0, (1, 2, 3), "abcde", 15)
    assert buffer.pending == Size.ZERO
    buffer.append((4,), b"f")
    assert buffer.take() == Frame(1, 3, (4,), "f", 11)


def test_an_increment_that_no_longer_fits_starts_the_next_frame() -> None:
    buffer = FrameBuffer(OVERHEAD + 5, OVERHEAD)
    buffer.append((1,), b"abc")
    assert buffer.head_can_grow
    buffer.append((2,), b"def")
    assert not buffer.head_can_grow
    assert [(frame.token_ids, frame.text) for frame in frames_of(buffer)] == [((1,), "abc"), ((2,), "def")]


def test_a_frame_is_filled_to_the_last_byte() -> None:
    buffer = FrameBuffer(OVERHEAD + 5, OVERHEAD)
    buffer.append((1,), b"abc")
    buffer.append((2,), b"de")
    assert [frame.text for frame in frames_of(buffer)] == ["abcde"]


def test_a_large_increment_is_split_between_characters_and_its_tokens_come_first() -> None:
    buffer = FrameBuffer(OVERHEAD + 4, OVERHEAD)
    buffer.append((7, 8), "a漢b字".encode())
    frames = frames_of(buffer)
    assert [(frame.token_ids, frame.text, frame.first_token_index) for frame in frames] == [
        ((7, 8), "a漢", 0),
        ((), "b字", 2),
    ]


def test_a_frame_closes_at_its_token_limit_but_one_increment_stays_whole() -> None:
    buffer = FrameBuffer(100, OVERHEAD, max_frame_tokens=2)
    for ids in ((1,), (2,), (3,), (4, 5, 6)):
        buffer.append(ids, b"x")
    assert [frame.token_ids for frame in frames_of(buffer)] == [(1, 2), (3,), (4, 5, 6)]


def test_a_token_without_text_yet_leaves_in_a_frame_without_text() -> None:
    buffer = FrameBuffer(100, OVERHEAD)
    buffer.append((1,), "漢".encode()[:2])
    assert buffer.pending == Size(bytes=0, tokens=1, frames=0)
    assert buffer.take() == Frame(0, 0, (1,), "", OVERHEAD)
    buffer.append((2,), "漢".encode()[2:])
    assert buffer.take() == Frame(1, 1, (2,), "漢", OVERHEAD + 3)


def test_the_last_frame_carries_the_reason() -> None:
    buffer = FrameBuffer(OVERHEAD + 4, OVERHEAD)
    buffer.append((1,), b"abcdefgh")
    buffer.finish(FinishReason.LENGTH)
    assert buffer.is_finished
    assert [frame.finish_reason for frame in frames_of(buffer)] == [None, FinishReason.LENGTH]
    assert buffer.take() is None


def test_an_end_with_nothing_pending_is_an_empty_frame() -> None:
    buffer = FrameBuffer(100, OVERHEAD)
    buffer.finish(FinishReason.STOP)
    assert not buffer.head_can_grow
    assert buffer.take() == Frame(0, 0, (), "", OVERHEAD, FinishReason.STOP)


@pytest.mark.parametrize(("complete", "expected"), [(True, "ab\ufffd"), (False, "ab")])
def test_only_the_model_may_end_inside_a_character(complete: bool, expected: str) -> None:
    buffer = FrameBuffer(100, OVERHEAD)
    buffer.append((1,), b"ab" + "漢".encode()[:2])
    buffer.finish(FinishReason.STOP, complete=complete)
    assert text_of(frames_of(buffer)) == expected


def test_discard_drops_what_is_pending_and_says_how_much() -> None:
    buffer = FrameBuffer(OVERHEAD + 4, OVERHEAD)
    buffer.append((1, 2), b"abcdefgh")
    assert buffer.discard(FinishReason.CANCELLED) == Size(bytes=8, tokens=2, frames=0)
    assert buffer.take() is None
    assert buffer.pending == Size.ZERO


def test_text_after_the_end_is_refused() -> None:
    buffer = FrameBuffer(100, OVERHEAD)
    buffer.finish(FinishReason.STOP)
    with pytest.raises(ValueError, match="after the end"):
        buffer.append((1,), b"x")


def test_a_frame_must_hold_one_character() -> None:
    FrameBuffer(OVERHEAD + 4, OVERHEAD)
    with pytest.raises(ValueError, match="max_frame_bytes is 13, must be at least 14"):
        FrameBuffer(OVERHEAD + 3, OVERHEAD)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("take_each", [True, False])
def test_split_at_every_byte_gives_the_text_back(text: str, take_each: bool) -> None:
    raw = text.encode()
    for split in range(len(raw) + 1):
        buffer = FrameBuffer(OVERHEAD + 7, OVERHEAD)
        frames = []
        for number, part in enumerate((raw[:split], raw[split:])):
            buffer.append((number,), part)
            if take_each:
                frames += frames_of(buffer)
        buffer.finish(FinishReason.STOP)
        frames += frames_of(buffer)
        assert text_of(frames) == text
        check_frames(frames, OVERHEAD + 7)


def test_one_byte_at_a_time_gives_the_text_back() -> None:
    for text in TEXTS:
        buffer = FrameBuffer(OVERHEAD + 7, OVERHEAD)
        frames = []
        for number, byte in enumerate(text.encode()):
            buffer.append((number,), bytes([byte]))
            frames += frames_of(buffer)
        buffer.finish(FinishReason.STOP)
        frames += frames_of(buffer)
        assert text_of(frames) == text
        check_frames(frames, OVERHEAD + 7)


increments = st.lists(
    st.tuples(
        st.lists(st.integers(0, 50_000), max_size=3).map(tuple),
        st.one_of(
            st.binary(max_size=12),
            st.sampled_from([part.encode()[i:j] for part in TEXTS for i, j in ((0, 5), (1, 9), (2, 40))]),
        ),
        st.booleans(),
    ),
    max_size=40,
)


@given(increments, st.integers(4, 40), st.one_of(st.none(), st.integers(1, 10)))
def test_any_bytes_in_any_split_and_any_rhythm(
    parts: list[tuple[tuple[int, ...], bytes, bool]], room: int, max_tokens: int | None
) -> None:
    buffer = FrameBuffer(OVERHEAD + room, OVERHEAD, max_tokens)
    frames: list[Frame] = []
    for token_ids, text, drain in parts:
        buffer.append(token_ids, text)
        if drain:
            while (head := buffer.head) is not None:
                frame = buffer.take()
                assert frame is not None
                assert head == Size(bytes=frame.wire_bytes, tokens=len(frame.token_ids), frames=1)
                frames.append(frame)
            assert buffer.pending == Size.ZERO
    buffer.finish(FinishReason.STOP)
    frames += frames_of(buffer)
    assert text_of(frames) == b"".join(text for _, text, _ in parts).decode(errors="replace")
    assert [i for frame in frames for i in frame.token_ids] == [i for ids, _, _ in parts for i in ids]
    check_frames(frames, OVERHEAD + room)
    assert buffer.pending == Size.ZERO


@pytest.mark.parametrize("part", [b"\x80", b"\xbf", b"\xc2", b"\xe6", b"\xf0", b"\xff", b"\xf0\x9f\x91", b"\xe2\x82"])
def test_invalid_bytes_for_ever_are_not_held_back(part: bytes) -> None:
    buffer = FrameBuffer(1000, OVERHEAD)
    out = ""
    for number in range(1, 2_000):
        buffer.append((number,), part)
        out += text_of(frames_of(buffer))
        # All but at most the last 3 bytes are out, as what a decoder makes of them.
        assert any(out == (part * number)[: len(part) * number - held].decode(errors="replace") for held in range(4))
        assert buffer.pending == Size.ZERO


def calls_made(work: Callable[[], object]) -> int:
    """Python and C calls: what the work costs, without a clock."""
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("rhythm", [1, 7, 10_000])
def test_cost_per_token_does_not_grow_with_what_is_pending(rhythm: int) -> None:
    def stream(tokens: int) -> None:
        buffer = FrameBuffer(4096, OVERHEAD)
        for number in range(tokens):
            buffer.append((number,), b"word ")
            assert buffer.head is not None  # the sender looks at it on every event
            if number % rhythm == 0:
                frames_of(buffer)
        frames_of(buffer)

    assert calls_made(lambda: stream(10_000)) <= 10.1 * calls_made(lambda: stream(1_000))


def test_a_stream_that_began_elsewhere_goes_on_with_its_numbers() -> None:
    buffer = FrameBuffer(100, OVERHEAD, first_sequence=7, first_token_index=30)
    buffer.append((1, 2), b"ab")
    assert buffer.take() == Frame(7, 30, (1, 2), "ab", 12)


def test_replayed_frames_stay_apart_whatever_their_size() -> None:
    buffer = FrameBuffer(20, OVERHEAD, first_sequence=7)
    frames = [Frame(7, 0, (1,), "x" * 50, 60), Frame(8, 1, (), "", 10), Frame(9, 1, (2,), "a", 11, FinishReason.STOP)]
    for frame in frames:
        assert not buffer.head_can_grow
        buffer.replay(frame)
    assert buffer.pending == Size(bytes=51, tokens=2, frames=0)
    assert frames_of(buffer) == frames
    assert buffer.pending == Size.ZERO


def test_text_does_not_join_a_replayed_frame() -> None:
    buffer = FrameBuffer(100, OVERHEAD)
    buffer.replay(Frame(0, 0, (1,), "a", 11))
    buffer.append((2,), b"b")
    assert [frame.text for frame in frames_of(buffer)] == ["a", "b"]


def test_a_frame_out_of_turn_is_not_replayed() -> None:
    buffer = FrameBuffer(100, OVERHEAD)
    with pytest.raises(ValueError, match="frame 1 is out of turn, 0 is next"):
        buffer.replay(Frame(1, 0, (1,), "a", 11))
    buffer.finish(FinishReason.STOP)
    with pytest.raises(ValueError, match="out of turn"):
        buffer.replay(Frame(1, 0, (1,), "a", 11))


def test_a_notice_comes_before_what_is_pending() -> None:
    buffer = FrameBuffer(100, OVERHEAD)
    buffer.append((1,), b"a")
    assert buffer.notice(FinishReason.DETACHED) == Frame(0, 0, (), "", OVERHEAD, FinishReason.DETACHED)
    buffer.append((2,), b"b")
    buffer.finish(FinishReason.STOP)
    assert frames_of(buffer) == [Frame(1, 0, (1, 2), "ab", 12, FinishReason.STOP)]


def test_another_text_starts_from_its_first_token_without_half_a_character_of_the_old_one() -> None:
    buffer = FrameBuffer(100, OVERHEAD)
    buffer.append((1,), b"a")
    buffer.take()
    buffer.append((2,), b"b" + "漢".encode()[:2])
    assert buffer.restart() == Size(bytes=1, tokens=1, frames=0)
    buffer.append((7,), b"new")
    assert buffer.take() == Frame(1, 0, (7,), "new", 13)
