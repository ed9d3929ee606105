from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.core.spool_record import END_BYTES, cost_bytes, pack, unpack

FRAMES = st.builds(
    Frame,
    sequence=st.integers(0, 2**40),
    first_token_index=st.integers(0, 2**40),
    token_ids=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8).map(tuple),
    text=st.text(max_size=20),
    wire_bytes=st.just(0),
    finish_reason=st.none() | st.sampled_from(FinishReason),
)


@given(FRAMES)
def test_a_frame_comes_back_as_it_was(frame):
    assert unpack(pack(frame)) == frame


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_and_nothing_else_is_raised(record):
    try:
        frame = unpack(record)
    except ValueError:
        return
    assert pack(frame) == record


@pytest.mark.parametrize(
    "damage", [lambda r: r[:10], lambda r: b"\x02" + r[1:], lambda r: r[:-1] + b"\xff"], ids=["cut", "version", "utf-8"]
)
def test_a_damaged_record_is_refused(damage):
    with pytest.raises(ValueError, match="not a spooled frame"):
        unpack(damage(pack(Frame(1, 2, (3,), "abc", 0, FinishReason.STOP))))


def test_a_token_id_that_is_no_32_bit_number_is_refused():
    with pytest.raises(ValueError, match="frame 4 cannot be kept"):
        pack(Frame(4, 0, (2**31,), "", 0))


@pytest.mark.parametrize("reason", FinishReason)
def test_an_empty_last_frame_fits_what_is_set_aside_for_it(reason):
    assert cost_bytes(pack(Frame(2**40, 2**40, (), "", 0, reason))) <= END_BYTES
