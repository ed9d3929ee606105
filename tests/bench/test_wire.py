"""gRPC framing by hand: any cut of the byte stream gives the same messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_server import TEXT, response
from tritonclient.grpc import service_pb2

from sluiceway.cli.bench.readers.wire import PREFIX, Message, MessageAssembler, StreamRequest, decode


@given(messages=st.lists(st.binary(max_size=40), max_size=8), data=st.data())
def test_messages_survive_any_cut(messages, data):
    stream = b"".join(PREFIX.pack(0, len(message)) + message for message in messages)
    assembler = MessageAssembler()
    seen = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        seen += assembler.feed(stream[:cut])
        stream = stream[cut:]
    assert seen == messages


def test_a_compressed_message_is_refused_by_name():
    with pytest.raises(ValueError, match="compressed"):
        MessageAssembler().feed(PREFIX.pack(1, 3) + b"abc")


def test_a_request_round_trips():
    body = StreamRequest(prompt="héllo", max_tokens=3, sampling={"temperature": 0}, client_id="c").body()
    [raw] = MessageAssembler().feed(body)
    message = service_pb2.ModelInferRequest.FromString(raw)
    inputs = dict(zip((each.name for each in message.inputs), message.raw_input_contents, strict=True))
    assert message.id == "c"
    assert inputs["text_input"][4:].decode() == "héllo"
    assert inputs["sampling_parameters"][4:] == b'{"max_tokens": 3, "temperature": 0}'
    assert inputs["return_frame"] == b"\x01"
    bare = StreamRequest(prompt="x", details=False).protobuf()
    assert [each.name for each in bare.inputs] == ["text_input", "sampling_parameters", "stream"]


def test_a_response_is_decoded_and_an_error_kept():
    assert decode(response(7, last=True).SerializeToString()) == Message(
        text=TEXT, token_ids=(7,), frame=(7, 7), finish_reason="length"
    )
    refused = service_pb2.ModelStreamInferResponse(error_message="no")
    assert decode(refused.SerializeToString()) == Message(error="no")
