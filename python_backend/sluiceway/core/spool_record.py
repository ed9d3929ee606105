"""A frame as the spool keeps it: one bytes object, the same in memory and in Redis."""

from __future__ import annotations

import struct

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason

VERSION = 1
_HEAD = struct.Struct("<BQQIB")  # version, sequence, first token index, tokens, length of the finish reason
# What a record costs beside its bytes: the object's head and its place in the ledger.
OBJECT_BYTES = 64
# A frame of one token takes this beside its text, and an empty last frame at most that.
TOKEN_FRAME_BYTES = _HEAD.size + 4 + OBJECT_BYTES
END_BYTES = _HEAD.size + max(len(reason) for reason in FinishReason) + OBJECT_BYTES


def pack(frame: Frame) -> bytes:
    """Without wire_bytes: what a frame takes on the wire depends on the outputs that are asked for next time.

    Raises ValueError for a token id that is no 32-bit number.
    """
    reason = ("" if frame.finish_reason is None else frame.finish_reason.value).encode()
    count = len(frame.token_ids)
    try:
        head = _HEAD.pack(VERSION, frame.sequence, frame.first_token_index, count, len(reason))
        ids = struct.pack(f"<{count}i", *frame.token_ids)
    except struct.error as error:
        raise ValueError(f"frame {frame.sequence} cannot be kept: {error}") from None
    return b"".join((head, ids, reason, frame.text.encode()))


def unpack(record: bytes) -> Frame:
    """Raises ValueError for bytes that pack() did not make: Redis is open to others."""
    try:
        version, sequence, first, count, reason_bytes = _HEAD.unpack_from(record)
        if version != VERSION:
            raise ValueError(f"version {version}, this is {VERSION}")
        ids = struct.unpack_from(f"<{count}i", record, _HEAD.size)
        text_at = _HEAD.size + 4 * count + reason_bytes
        reason = record[text_at - reason_bytes : text_at].decode()
        return Frame(
            sequence=sequence,
            first_token_index=first,
            token_ids=ids,
            text=record[text_at:].decode(),
            wire_bytes=0,
            finish_reason=FinishReason(reason) if reason else None,
        )
    except (struct.error, ValueError) as error:
        raise ValueError(f"not a spooled frame: {error}") from None


def cost_bytes(record: bytes) -> int:
    """What keeping it takes of a budget."""
    return len(record) + OBJECT_BYTES
