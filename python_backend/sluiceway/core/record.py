"""One observation of a client-facing RPC, as Envoy's access log reports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """Absolute counters of one RPC (facts: docs/flow-control.md, "The signal").

    rpc_id: Envoy's x-request-id.
    messages: gRPC response messages that passed Envoy's filter chain (grpc_stats filter), exact; 0 and never
    more if ``counts_messages`` is false: the body is HTTP's, and only its acknowledgements tell its frames.
    body_bytes: response body bytes that passed the filter chain (response_body_bytes).
    wire_bytes: bytes let out to the client (downstream_wire_bytes_sent), header block and frame
    headers included.
    header_bytes: response header bytes (downstream_header_bytes_sent), 0 if the proxy does not say.
    ended: this is the end record; ``detail`` is then Envoy's response_code_details or flags.
    expired: no record came for too long; the counters are the last known ones.
    """

    rpc_id: str
    messages: int
    body_bytes: int
    wire_bytes: int
    header_bytes: int = 0
    ended: bool = False
    disconnected: bool = False
    expired: bool = False
    detail: str = ""
    counts_messages: bool = True
