from __future__ import annotations

import numpy as np
import pytest

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.runtime.codec import Outputs, RawRequest, parse, tensors
from sluiceway.runtime.config import AdmissionConfig
from sluiceway.runtime.errors import RequestError

ADMISSION = AdmissionConfig(max_prompt_bytes=100)
YES, NO = np.array([True]), np.array([False])


def text(value):
    return np.array([value], dtype=np.object_)


def raw(prompt=b"hello", parameters="", client_id="me", **inputs):
    return RawRequest(inputs={"text_input": text(prompt), **inputs}, client_id=client_id, parameters=parameters)


def message(request):
    with pytest.raises(RequestError) as caught:
        parse(request, ADMISSION)
    return str(caught.value)


def test_a_plain_request():
    request = parse(raw(), ADMISSION)
    assert (request.prompt, request.client_id, request.rpc_id) == ("hello", "me", None)
    assert request.outputs == Outputs()
    assert not request.stream


@pytest.mark.parametrize(
    ("inputs", "echo"),
    [
        ({}, True),  # as vllm_backend: a whole answer begins with the prompt
        ({"exclude_input_in_output": YES}, False),
        ({"exclude_input_in_output": NO}, True),
        ({"stream": YES}, False),
        ({"stream": YES, "exclude_input_in_output": YES}, False),
    ],
)
def test_whether_the_prompt_comes_back(inputs, echo):
    assert parse(raw(**inputs), ADMISSION).echo is echo


def test_a_stream_never_repeats_the_prompt():
    problem = message(raw(stream=YES, exclude_input_in_output=NO))
    assert problem == "exclude_input_in_output: must be true (or left out) when stream is true"


def test_outputs_only_when_asked_for():
    assert parse(raw(return_frame=YES, return_token_ids=NO), ADMISSION).outputs == Outputs(frame=True)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (RawRequest(inputs={}), "text_input: missing"),
        (raw(b""), "text_input: empty; a prompt has at least 1 character"),
        (raw(b"x" * 101), "text_input: 101 bytes, at most 100 are taken"),
        (raw(b"abc\xff"), "text_input: not UTF-8 at byte 3"),
        (raw(text_input=np.array([b"a", b"b"], dtype=np.object_)), "text_input: must hold 1 element, got 2"),
        (raw(text_input=np.array([3])), "text_input: must be BYTES, got int64"),
        (raw(stream=np.array([1])), "stream: must be BOOL, got int64"),
        (raw(stream=np.array([], dtype=bool)), "stream: must hold 1 element, got 0"),
        (raw(sampling_parameters=text(b"[]")), "sampling_parameters: must be a JSON object, got a list of 0"),
        (raw(parameters="{"), "request parameters: not JSON"),
        (raw(parameters="[]"), "request parameters: not a JSON object"),
        (raw(parameters='{"x-request-id": ""}'), "request parameter x-request-id: must be 1 to 256 characters"),
        (raw(parameters='{"x-request-id": 3}'), "request parameter x-request-id: must be 1 to 256 characters"),
        (
            raw(parameters='{"x-request-id": "forged", "x-request-id": "envoys"}'),
            "request parameters: the key 'x-request-id' is given twice",
        ),
    ],
)
def test_what_is_wrong_is_named(request_, expected):
    assert message(request_) == expected


def test_the_rpc_is_known_by_envoys_id():
    assert parse(raw(parameters='{"x-request-id": "abc", "other": 1}'), ADMISSION).rpc_id == "abc"


def test_a_frame_becomes_the_tensors_that_were_asked_for():
    frame = Frame(2, 5, (7, 8), "né", 120, FinishReason.STOP)
    everything = dict(tensors(frame, Outputs(token_ids=True, frame=True, finish_reason=True)))
    assert everything["text_output"].tolist() == ["né".encode()]
    assert (everything["token_ids"].dtype, everything["token_ids"].tolist()) == (np.int32, [7, 8])
    assert (everything["frame"].dtype, everything["frame"].tolist()) == (np.int64, [2, 5])
    assert everything["finish_reason"].tolist() == [b"stop"]
    assert [name for name, _ in tensors(frame, Outputs())] == ["text_output"]
    assert tensors(frame, Outputs(), prefix="Oh ")[0][1].tolist() == ["Oh né".encode()]
