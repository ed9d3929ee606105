"""Which error means what."""

from __future__ import annotations

import pytest

from sluiceway.client import errors


@pytest.mark.parametrize(
    ("text", "code", "retry_after_s"),
    [
        ("stream_expired: its time is over", "stream_expired", None),
        ("frame_unknown: frame 9 was never made", "frame_unknown", None),
        ("spool_unreachable: Redis does not answer", "spool_unreachable", 1.0),
        ("admission.max_streams: 9 needed, 8 allowed; try again in 2.5 s", "unavailable", 2.5),
        ("the server is shutting down; try again elsewhere", "unavailable", 1.0),
        ("[request id: a] Request for unknown model: 'x' is not found", "not_found", None),
        ("text_input: missing", "invalid_argument", None),
    ],
)
def test_a_message_on_the_stream(text, code, retry_after_s):
    error = errors.of_text(text)
    assert (error.code, error.retry_after_s) == (code, retry_after_s)


@pytest.mark.parametrize(
    "text",
    [
        "ack_frame: frame 9 was never sent; 0 to 3",
        "ack_body_bytes: only with ack_frame",
        "id: 2 open streams of this RPC have it; give each its own",
        "text_input: must be left out of a control request",
    ],
)
def test_a_refused_control_request_ends_no_stream(text):
    assert errors.is_about_control(text)
    assert errors.is_about_control(f"[request id: a] {text}")


@pytest.mark.parametrize("text", ["text_input: missing", "resume_frame: missing", "acks: only with stream true"])
def test_a_refused_generation_is_no_control_request(text):
    assert not errors.is_about_control(text)
