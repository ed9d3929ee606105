"""Lines on the pipe from the listener process to its parent, one JSON array a batch:

``[1, records, open_rpcs, lag_ms, [[rpc_id, messages, body, wire, header, flags, detail], ...]]``

The first element is the format's version. Why JSON lines: only changes cross the pipe, one call into a C
parser takes a whole batch (2 us a record), a line cut by a dying writer is recognised as such, and an
operator can read along by running the listener by hand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sluiceway.core.record import Record

_VERSION = 1
_FIELDS = 7  # of a record
_ENDED, _DISCONNECTED, _EXPIRED, _UNCOUNTED = 1, 2, 4, 8


@dataclass(frozen=True, slots=True)
class Batch:
    """``news``: at most one record per RPC. An empty batch says once a second that the listener lives.

    records: taken in since the listener started. open_rpcs: tracked now.
    lag_ms: how long the batch before this one waited for the pipe.
    """

    records: int
    open_rpcs: int
    lag_ms: int
    news: Sequence[Record]


def encode(batch: Batch) -> bytes:
    news = [
        (
            each.rpc_id,
            each.messages,
            each.body_bytes,
            each.wire_bytes,
            each.header_bytes,
            _flags(each),
            each.detail,
        )
        for each in batch.news
    ]
    fields = [_VERSION, batch.records, batch.open_rpcs, batch.lag_ms, news]
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Batch:
    """Raises ValueError for anything that ``encode`` of this version did not make."""
    match json.loads(line):
        case [int(version), int(records), int(open_rpcs), int(lag_ms), list(news)] if version == _VERSION:
            if all(len(fields) == _FIELDS for fields in news):
                return Batch(records, open_rpcs, lag_ms, [_record(*fields) for fields in news])
    raise ValueError(f"not a line of the delivery pipe, version {_VERSION}: {line[:40]!r}")


def _flags(record: Record) -> int:
    ends = _ENDED * record.ended | _DISCONNECTED * record.disconnected | _EXPIRED * record.expired
    return ends | _UNCOUNTED * (not record.counts_messages)


def _record(rpc_id: str, messages: int, body: int, wire: int, header: int, flags: int, detail: str) -> Record:
    return Record(
        rpc_id,
        messages,
        body,
        wire,
        header,
        ended=bool(flags & _ENDED),
        disconnected=bool(flags & _DISCONNECTED),
        expired=bool(flags & _EXPIRED),
        detail=detail,
        counts_messages=not flags & _UNCOUNTED,
    )
