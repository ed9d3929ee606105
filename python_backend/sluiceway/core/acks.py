"""Which frames of one RPC their clients have acknowledged, and which acks wait for bytes to be let out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluiceway.core.window import Entry


@dataclass(slots=True)
class _Client:
    """unacked: sent and not acknowledged, oldest first. acked_frames: counted from its first frame.

    marks: (frames, body_bytes), both rising: once so much of the body is out, it has so many frames.
    """

    unacked: deque[Entry] = field(default_factory=deque)
    acked_frames: int = 0
    wanted_frames: int = 0
    marks: deque[tuple[int, int]] = field(default_factory=deque)


class Acks:
    """Holds one entry for each frame that is not acknowledged, and at most one mark for each of those."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self.were_heard = False

    def is_open(self, request_id: str) -> bool:
        return request_id in self._clients

    def open(self, request_id: str) -> None:
        self._clients[request_id] = _Client()

    def close(self, request_id: str) -> Iterator[Entry]:
        """No ack will come any more: yields the entries that waited for one."""
        client = self._clients.pop(request_id, None)
        while client is not None and client.unacked:
            yield _acked(client.unacked.popleft())

    def sent(self, entry: Entry) -> None:
        self._clients[entry.request_id].unacked.append(entry)

    def acknowledge(self, request_id: str, frames: int, body_bytes: int | None) -> None:
        """Raises ValueError if the request was not opened. An ack that says nothing new changes nothing."""
        client = self._clients.get(request_id)
        if client is None:
            raise ValueError(f"request {request_id!r} was not opened with acks")
        self.were_heard = True
        frames = min(frames, client.acked_frames + len(client.unacked))
        if body_bytes is None:
            client.wanted_frames = max(client.wanted_frames, frames)
        elif frames > (client.marks[-1][0] if client.marks else client.wanted_frames):
            client.marks.append((frames, max(body_bytes, client.marks[-1][1] if client.marks else 0)))

    def take(self, let_out_bytes: int) -> Iterator[Entry]:
        """The entries that are acknowledged by now, each once."""
        for client in self._clients.values():
            while client.marks and client.marks[0][1] <= let_out_bytes:
                client.wanted_frames = max(client.wanted_frames, client.marks.popleft()[0])
            while client.acked_frames < client.wanted_frames:
                client.acked_frames += 1
                yield _acked(client.unacked.popleft())


def _acked(entry: Entry) -> Entry:
    entry.awaits_ack = False
    return entry
