"""One access log entry of Envoy, read into a Record."""

from __future__ import annotations

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.extensions.filters.http.grpc_stats.v3 import config_pb2

from sluiceway.core.record import Record

STREAM_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
# The gateway's answers that a stream's bytes travel in.
_HTTP_PREFIXES = ("/v1/chat/completions", "/v1/completions", "/v1/stream", "/v2/models/")
GRPC_STATS = "envoy.filters.http.grpc_stats"
# What Envoy writes as response_code_details when the upstream's own end of stream was passed on whole.
_COMPLETE = "via_upstream"


def read_entry(entry: accesslog_pb2.HTTPAccessLogEntry) -> Record | None:
    """None for anything but an answer with an id: a token stream, or a body that the gateway makes of one.

    The path decides, not the grpc_stats filter state: that is missing until the first message of either
    side, but the records before it tell that there is a signal, and of clients that leave at once.
    """
    common = entry.common_properties
    is_grpc = entry.request.path == STREAM_PATH
    if not common.stream_id or not (is_grpc or entry.request.path.startswith(_HTTP_PREFIXES)):
        return None
    counts = config_pb2.FilterObject()
    if GRPC_STATS in common.filter_state_objects:
        common.filter_state_objects[GRPC_STATS].Unpack(counts)
    ended = common.access_log_type == accesslog_pb2.DownstreamEnd
    flags = [field.name for field, _ in common.response_flags.ListFields()] if ended else []
    details = entry.response.response_code_details
    return Record(
        rpc_id=common.stream_id,
        messages=counts.response_message_count,
        body_bytes=entry.response.response_body_bytes,
        wire_bytes=common.downstream_wire_bytes_sent,
        header_bytes=entry.response.downstream_header_bytes_sent,
        ended=ended,
        disconnected=ended and (bool(flags) or details != _COMPLETE),
        detail=",".join([*flags, details]) if ended else "",
        counts_messages=is_grpc,
    )
