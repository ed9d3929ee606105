"""Lines on the pipe from the listener process to its parent: one JSON array each.

JSON lines, because only changes cross the pipe (a few hundred lines a second at most), and because an
operator can read them with ``strace`` or by running the listener by hand.

Record: ``["r", rpc_id, messages, body_bytes, wire_bytes, header_bytes, flags, detail]``
Status: ``["s", records, open_rpcs]``, once a second: the listener lives even if nothing changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from sluiceway.core.record import Record

_ENDED, _DISCONNECTED, _EXPIRED = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Status:
    """``records``: received since the listener started. ``open_rpcs``: tracked now."""

    records: int
    open_rpcs: int


def encode(item: Record | Status) -> bytes:
    if isinstance(item, Status):
        fields: list[object] = ["s", item.records, item.open_rpcs]
    else:
        flags = _ENDED * item.ended | _DISCONNECTED * item.disconnected | _EXPIRED * item.expired
        fields = [
            "r",
            item.rpc_id,
            item.messages,
            item.body_bytes,
            item.wire_bytes,
            item.header_bytes,
            flags,
            item.detail,
        ]
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Record | Status:
    """Raises ValueError for a line that is neither."""
    match json.loads(line):
        case ["s", int(records), int(open_rpcs)]:
            return Status(records, open_rpcs)
        case ["r", str(rpc_id), int(messages), int(body), int(wire), int(header), int(flags), str(detail)]:
            return Record(
                rpc_id=rpc_id,
                messages=messages,
                body_bytes=body,
                wire_bytes=wire,
                header_bytes=header,
                ended=bool(flags & _ENDED),
                disconnected=bool(flags & _DISCONNECTED),
                expired=bool(flags & _EXPIRED),
                detail=detail,
            )
    raise ValueError(f"not a line of the delivery pipe: {line[:80]!r}")
