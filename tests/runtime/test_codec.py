from __future__ import annotations

import numpy as np
import pytest

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.runtime.codec import Outputs, RawRequest, parse, tensors
from sluiceway.runtime.config_sections import AdmissionConfig
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


STREAM_ID = "0123456789abcdef" * 2
STREAM_ID_BYTES = STREAM_ID.encode()


def back(frame=3, stream_id=STREAM_ID_BYTES, **inputs):
    return RawRequest(inputs={"resume_stream_id": text(stream_id), "resume_frame": np.array([frame]), **inputs})


def test_who_asks_to_come_back_gets_an_id_that_nobody_can_guess():
    requests = [parse(raw(stream=YES, resumable=YES), ADMISSION) for _ in range(2)]
    assert all(len(request.stream_id) == 32 and request.resume_frame is None for request in requests)
    assert requests[0].stream_id != requests[1].stream_id
    assert parse(raw(stream=YES, resumable=NO), ADMISSION).stream_id == ""


@pytest.mark.parametrize("inputs", [{}, {"stream": YES}, {"stream": YES, "resumable": YES, "return_frame": YES}])
def test_who_comes_back_needs_no_prompt(inputs):
    request = parse(back(**inputs), ADMISSION)
    assert (request.prompt, request.stream_id, request.resume_frame) == ("", STREAM_ID, 3)
    assert request.stream
    assert not request.echo


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (raw(resumable=YES), "resumable: only with stream true; a whole answer is one message"),
        (raw(resume_frame=np.array([3])), "resume_frame: only with resume_stream_id"),
        (back(stream_id=b"x" * 32), "resume_stream_id: must be 32 characters of 0-9 and a-f"),
        (back(stream_id=b""), "resume_stream_id: must be 32 characters of 0-9 and a-f"),
        (back(stream_id=STREAM_ID_BYTES + b"\n"), "resume_stream_id: must be 32 characters of 0-9 and a-f"),
        (back(frame=-1), "resume_frame: must be 0 to 2**53 - 1, got -1"),
        (back(frame=2**53), f"resume_frame: must be 0 to 2**53 - 1, got {2**53}"),
        (back(frame=1.5), "resume_frame: must be INT64, got float64"),
        (
            RawRequest(inputs={"resume_stream_id": text(STREAM_ID_BYTES)}),
            "resume_frame: missing; with resume_stream_id, the next frame wanted",
        ),
        (back(text_input=text(b"Q")), "text_input: must be left out with resume_stream_id; the stream has its own"),
        (
            back(sampling_parameters=text(b"{}")),
            "sampling_parameters: must be left out with resume_stream_id; the stream has its own",
        ),
        (back(stream=NO), "stream: must be true (or left out) with resume_stream_id"),
    ],
)
def test_what_is_wrong_with_coming_back_is_named(request_, expected):
    assert message(request_) == expected


def test_a_frame_becomes_the_tensors_that_were_asked_for():
    frame = Frame(2, 5, (7, 8), "né", 120, FinishReason.STOP)
    everything = dict(tensors(frame, Outputs(token_ids=True, frame=True, finish_reason=True)))
    assert everything["text_output"].tolist() == ["né".encode()]
    assert (everything["token_ids"].dtype, everything["token_ids"].tolist()) == (np.int32, [7, 8])
    assert (everything["frame"].dtype, everything["frame"].tolist()) == (np.int64, [2, 5])
    assert everything["finish_reason"].tolist() == [b"stop"]
    assert [name for name, _ in tensors(frame, Outputs())] == ["text_output"]
    assert dict(tensors(frame, Outputs(), stream_id="ab"))["stream_id"].tolist() == [b"ab"]
    assert tensors(frame, Outputs(), prefix="Oh ")[0][1].tolist() == ["Oh né".encode()]


def test_a_sparse_client_gets_a_finish_reason_only_where_there_is_one():
    outputs = Outputs(finish_reason=True, sparse=True)
    assert [name for name, _ in tensors(Frame(0, 0, (1,), "a", 100), outputs)] == ["text_output"]
    last = dict(tensors(Frame(1, 1, (2,), "b", 100, FinishReason.STOP), outputs))
    assert last["finish_reason"].tolist() == [b"stop"]


def test_our_own_clients_are_sparse():
    assert parse(raw(stream=YES, acks=YES), ADMISSION).outputs.sparse
    assert not parse(raw(stream=YES), ADMISSION).outputs.sparse
