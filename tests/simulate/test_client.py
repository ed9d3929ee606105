"""How a simulated client takes in what it is sent, at literal times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.cli.simulate.client import Client
from sluiceway.cli.simulate.trace import Reader
from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason


def frame(size: int, *, tokens: int = 1, last: bool = False) -> Frame:
    return Frame(0, 0, (0,) * tokens, "", size, FinishReason.LENGTH if last else None)


def client(reader: str, *, buffer_bytes: int = 1000, lump_bytes: int = 1, envoy_bytes: int = 10_000) -> Client:
    return Client(Reader.parse(reader), 0.0, buffer_bytes=buffer_bytes, lump_bytes=lump_bytes, envoy_bytes=envoy_bytes)


def test_normal_has_everything_at_once() -> None:
    it = client("normal")
    for _ in range(20):
        it.take(frame(600), 1.0)
    it.take(frame(600, last=True), 1.0)
    assert it.tokens == 21
    assert it.got_all_at == 1.0


def test_never_takes_what_its_buffer_holds() -> None:
    it = client("never")
    for _ in range(5):
        it.take(frame(300), 1.0)
    it.advance(1e6)
    assert it.tokens == 3
    assert it.next_frame_at() is None
    assert it.end_at() is None


def test_stop_takes_its_bytes_and_then_a_buffer_more() -> None:
    it = client("stop:500")
    for _ in range(10):
        it.take(frame(300), 1.0)
    assert it.tokens == 5


def test_rate_takes_a_buffer_and_then_its_rate() -> None:
    it = client("rate:100")
    for _ in range(4):
        it.take(frame(500), 0.0)
    assert it.tokens == 2
    assert it.next_frame_at() == 5.0
    it.advance(4.9)
    assert it.tokens == 2
    it.advance(5.0)
    assert it.tokens == 3
    assert it.end_at() == 10.0


def test_a_rate_is_not_saved_up_while_there_is_nothing_to_read() -> None:
    it = client("rate:100")
    it.advance(1000.0)
    for _ in range(3):
        it.take(frame(500), 1000.0)
    assert it.tokens == 2
    assert it.next_frame_at() == 1005.0


def test_window_comes_back_in_lumps() -> None:
    it = client("rate:100", lump_bytes=400)
    for _ in range(4):
        it.take(frame(500), 0.0)
    assert it.next_frame_at() == 8.0  # 500 bytes more need two lumps of 400
    it.advance(7.9)
    assert it.tokens == 2
    it.advance(8.0)
    assert it.tokens == 3


def test_envoy_holds_what_its_buffer_holds_and_counts_whole_messages() -> None:
    it = client("never", buffer_bytes=100, envoy_bytes=1000)
    for _ in range(4):
        it.take(frame(400), 0.0)
    record = it.record("rpc")
    assert (record.messages, record.body_bytes, record.wire_bytes) == (2, 800, 100)


def test_who_left_gets_nothing_more() -> None:
    it = client("rate:100")
    for _ in range(4):
        it.take(frame(500), 0.0)
    it.leave(5.0)
    it.advance(100.0)
    assert it.tokens == 3
    assert it.got_all_at is None


@given(
    reader=st.sampled_from(["normal", "never", "rate:50", "rate:1000", "stop:700"]),
    lump=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.integers(0, 900), st.floats(0, 20)), max_size=30),
)
def test_counters_never_fall_and_stay_in_order(reader: str, lump: int, steps: list[tuple[int, float]]) -> None:
    it = client(reader, lump_bytes=lump, envoy_bytes=2000)
    now, sent, before = 0.0, 0, it.record("rpc")
    for size, passed in steps:
        now += passed
        if size:
            it.take(frame(size), now)
            sent += size
        it.advance(now)
        record = it.record("rpc")
        assert before.wire_bytes <= record.wire_bytes <= record.body_bytes <= sent
        assert before.body_bytes <= record.body_bytes <= record.wire_bytes + max(2000, before.body_bytes)
        assert before.messages <= record.messages <= it.frames
        before = record


@given(sizes=st.lists(st.integers(1, 900), min_size=1, max_size=20), lump=st.integers(1, 1000))
def test_what_it_foretells_comes_true(sizes: list[int], lump: int) -> None:
    it = client("rate:100", lump_bytes=lump)
    for size in sizes:
        it.take(frame(size), 0.0)
    for _ in range(len(sizes) + 1):
        if (at := it.next_frame_at()) is None:
            break
        tokens = it.tokens
        it.advance(max(0.0, at - 0.1))
        assert it.tokens == tokens or at < 0.1
        it.advance(at)
        assert it.tokens > tokens
    assert it.tokens == len(sizes)
    assert it.end_at() == pytest.approx(max(0, sum(sizes) - 1000) / 100, abs=lump / 100 + 1)
