from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.core.record import Record
from sluiceway.delivery.pipe_format import Batch, decode, encode

counters = st.integers(0, 2**63)
records = st.builds(
    Record,
    rpc_id=st.text(min_size=1),
    messages=counters,
    body_bytes=counters,
    wire_bytes=counters,
    header_bytes=counters,
    ended=st.booleans(),
    disconnected=st.booleans(),
    expired=st.booleans(),
    detail=st.text(),
    counts_messages=st.booleans(),
)


@given(st.builds(Batch, records=counters, open_rpcs=counters, lag_ms=counters, news=st.lists(records)))
def test_what_goes_in_comes_out_as_one_line(batch: Batch) -> None:
    line = encode(batch)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == batch


@pytest.mark.parametrize("line", [b"", b"hello", b"{}", b"[2,0,0,0,[]]", b'[1,0,0,0,[["a",1', b"[1,0,0,[]]"])
def test_other_lines_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(line)


def test_a_record_with_a_field_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match="version 1"):
        decode(b'[1,0,0,0,[["a",1,2]]]')
