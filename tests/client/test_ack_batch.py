"""When acks are sent; times are literal seconds."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.client.ack_batch import FULL_BYTES, FULL_FRAMES, MIN_INTERVAL_S, Ack, AckBatch


def test_a_small_ack_waits_200_ms():
    batch = AckBatch()
    batch.add(Ack(0), frames=1, content_bytes=10, now=5.0)
    assert batch.due_at == 5.2
    assert batch.take(5.1) is None
    assert batch.take(5.2) == Ack(0)
    assert batch.due_at is None


def test_a_quarter_of_the_window_is_due_at_once():
    for frames, content_bytes in ((1, FULL_BYTES), (FULL_FRAMES, 1)):
        batch = AckBatch()
        batch.add(Ack(3), frames=frames, content_bytes=content_bytes, now=5.0)
        assert batch.take(5.0) == Ack(3)


def test_never_two_within_50_ms():
    batch = AckBatch()
    batch.add(Ack(0), frames=1, content_bytes=FULL_BYTES, now=5.0)
    assert batch.take(5.0) == Ack(0)
    batch.add(Ack(1), frames=1, content_bytes=FULL_BYTES, now=5.01)
    assert batch.due_at == 5.05
    assert batch.take(5.04) is None
    assert batch.take(5.05) == Ack(1)


def test_the_latest_covers_those_before():
    batch = AckBatch()
    batch.add(Ack(0, body_bytes=30), frames=1, content_bytes=10, now=5.0)
    batch.add(Ack(4, body_bytes=90), frames=4, content_bytes=40, now=5.1)
    batch.add(Ack(2, body_bytes=60), frames=0, content_bytes=0, now=5.15)
    assert batch.take(5.2) == Ack(4, body_bytes=90)


@given(
    st.lists(
        st.tuples(st.floats(0.001, 0.3), st.integers(1, 20), st.integers(0, 8192)),
        min_size=1,
        max_size=60,
    )
)
def test_every_frame_is_acknowledged_in_time_and_acks_are_rare(steps):
    batch, now, sequence, waits_since, sent_at = AckBatch(), 0.0, -1, None, []
    for wait_s, frames, content_bytes in steps:
        now += wait_s
        while batch.due_at is not None and batch.due_at <= now:
            due_at = batch.due_at
            assert batch.take(due_at) == Ack(sequence)
            assert due_at - waits_since <= 0.2 + 1e-9
            sent_at.append(due_at)
            waits_since = None
        sequence += frames
        waits_since = now if waits_since is None else waits_since
        batch.add(Ack(sequence), frames, content_bytes, now)
    gaps = [after - before for before, after in pairwise(sent_at)]
    assert all(gap >= MIN_INTERVAL_S - 1e-9 for gap in gaps)
