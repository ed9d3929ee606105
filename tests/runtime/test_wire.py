from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.runtime.codec import Outputs, tensors
from sluiceway.runtime.wire import frame_overhead_bytes, response_bytes

DATATYPES = {
    "text_output": "BYTES",
    "token_ids": "INT32",
    "frame": "INT64",
    "finish_reason": "BYTES",
    "stream_id": "BYTES",
}


def message(frame, outputs, client_id, stream_id=""):
    """The message that Triton makes of the frame."""
    response = service_pb2.ModelStreamInferResponse()
    infer = response.infer_response
    infer.model_name, infer.model_version, infer.id = "llm", "1", client_id
    infer.parameters["triton_final_response"].bool_param = frame.finish_reason is not None
    for name, array in tensors(frame, outputs, stream_id=stream_id):
        infer.outputs.add(name=name, datatype=DATATYPES[name], shape=array.shape)
        if DATATYPES[name] == "BYTES":
            infer.raw_output_contents.append(len(array[0]).to_bytes(4, "little") + array[0])
        else:
            infer.raw_output_contents.append(array.tobytes())
    return response


outputs = st.builds(
    Outputs, token_ids=st.booleans(), frame=st.booleans(), finish_reason=st.booleans(), sparse=st.booleans()
)
frames = st.builds(
    Frame,
    sequence=st.integers(0, 2**40),
    first_token_index=st.integers(0, 2**40),
    token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=200).map(tuple),
    text=st.text(max_size=300),
    wire_bytes=st.just(0),
    finish_reason=st.none() | st.sampled_from(FinishReason),
)


@given(frames, outputs, st.text(max_size=200), st.sampled_from(["", "ab" * 16]))
def test_the_size_is_protobufs(frame, wanted, client_id, stream_id):
    size = response_bytes(frame, wanted, model="llm", version="1", client_id=client_id, stream_id=stream_id)
    assert size == 5 + message(frame, wanted, client_id, stream_id).ByteSize()


@pytest.mark.parametrize("wanted", [Outputs(), Outputs(token_ids=True, frame=True, finish_reason=True)])
def test_overhead_and_text_make_a_one_token_frame(wanted):
    frame = Frame(3, 3, (9,), "river ", 0)
    overhead = frame_overhead_bytes(wanted, model="llm", version="1", client_id="c")
    assert overhead + 6 == response_bytes(frame, wanted, model="llm", version="1", client_id="c")
