from __future__ import annotations

import numpy as np
import pytest

from sluiceway.runtime.codec import RawRequest
from sluiceway.runtime.control import Ack, AskLevels, Cancel, ControlRequest, is_control, parse_control
from sluiceway.runtime.errors import RequestError


def raw(**inputs):
    arrays = {name: np.array([value]) for name, value in inputs.items()}
    return RawRequest(arrays, "client", '{"x-request-id": "rpc"}')


@pytest.mark.parametrize(
    ("inputs", "control"),
    [
        ({"ack_frame": 0}, Ack(0)),
        ({"ack_frame": 7, "ack_body_bytes": 4096}, Ack(7, 4096)),
        ({"cancel": True}, Cancel()),
        ({"levels": True}, AskLevels()),
    ],
)
def test_what_a_client_can_say(inputs, control):
    assert is_control(raw(**inputs))
    assert parse_control(raw(**inputs)) == ControlRequest("client", "rpc", control)


def test_a_generation_is_no_control():
    assert not is_control(raw(text_input=b"Q", acks=True))


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ({"ack_frame": -1}, "ack_frame: must be 0 to"),
        ({"ack_frame": 2**53}, "ack_frame: must be 0 to"),
        ({"ack_frame": True}, "ack_frame: must be INT64, got bool"),
        ({"ack_frame": 1, "ack_body_bytes": -1}, "ack_body_bytes: must be 0 to"),
        ({"ack_body_bytes": 1}, "ack_body_bytes: only with ack_frame"),
        ({"cancel": False}, r"cancel: must be true \(or left out\)"),
        ({"levels": 1}, "levels: must be BOOL"),
        ({"ack_frame": 1, "cancel": True}, "cancel: not together with ack_frame"),
        ({"cancel": True, "levels": True}, "levels: not together with cancel"),
        ({"ack_frame": 1, "text_input": b"Q"}, "text_input: must be left out of a control request"),
        ({"cancel": True, "acks": True}, "acks: must be left out"),
    ],
)
def test_what_it_cannot(inputs, complaint):
    with pytest.raises(RequestError, match=complaint):
        parse_control(raw(**inputs))
