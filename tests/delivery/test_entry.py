from __future__ import annotations

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.extensions.filters.http.grpc_stats.v3 import config_pb2

from sluiceway.core.record import Record
from sluiceway.delivery.entry import GRPC_STATS, STREAM_PATH, read_entry


def entry(
    *, path: str = STREAM_PATH, stream_id: str = "r", messages: int | None = 3, end: bool = False, details: str = ""
) -> accesslog_pb2.HTTPAccessLogEntry:
    made = accesslog_pb2.HTTPAccessLogEntry()
    made.request.path = path
    common = made.common_properties
    common.stream_id = stream_id
    common.downstream_wire_bytes_sent = 500
    common.access_log_type = accesslog_pb2.DownstreamEnd if end else accesslog_pb2.DownstreamPeriodic
    made.response.response_body_bytes = 400
    made.response.downstream_header_bytes_sent = 120
    made.response.response_code_details = details
    if messages is not None:
        common.filter_state_objects[GRPC_STATS].Pack(config_pb2.FilterObject(response_message_count=messages))
    return made


def test_the_counters() -> None:
    assert read_entry(entry()) == Record("r", 3, 400, 500, 120)


def test_before_the_first_message_there_is_no_count() -> None:
    found = read_entry(entry(messages=None))
    assert found is not None
    assert found.messages == 0


@pytest.mark.parametrize(
    "other", [entry(stream_id=""), entry(path="/inference.GRPCInferenceService/ServerLive")], ids=["no id", "unary"]
)
def test_what_is_no_token_stream(other: accesslog_pb2.HTTPAccessLogEntry) -> None:
    assert read_entry(other) is None


def test_a_complete_answer_is_no_disconnect() -> None:
    found = read_entry(entry(end=True, details="via_upstream"))
    assert found is not None
    assert (found.ended, found.disconnected, found.detail) == (True, False, "via_upstream")


@pytest.mark.parametrize(
    ("flag", "details"),
    [
        ("downstream_connection_termination", "downstream_remote_disconnect"),
        ("downstream_remote_reset", "http2.remote_reset"),
        ("downstream_connection_termination", "downstream_local_disconnect(http2_ping_timeout)"),
        ("stream_idle_timeout", "stream_idle_timeout"),
        ("overload_manager", "overload"),
        ("upstream_connection_termination", "upstream_reset_after_response_started{connection_termination}"),
        (None, "max_duration_timeout"),
    ],
)
def test_every_other_end_is_one(flag: str | None, details: str) -> None:
    raw = entry(end=True, details=details)
    if flag is not None:
        setattr(raw.common_properties.response_flags, flag, True)
    found = read_entry(raw)
    assert found is not None
    assert found.disconnected
    assert found.detail == ",".join(filter(None, (flag, details)))
