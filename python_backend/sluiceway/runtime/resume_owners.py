"""Owners: the streams that the engine fills and whose clients may come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sluiceway.core.spool import Spool

# Unread beyond the first share of max_stream_bytes, a stream without its client waits until it is below
# the second. What the engine makes until it hears of it must fit above the first.
_HOLD_SHARE, _GO_ON_SHARE = 0.75, 0.5


class Generation(Protocol):
    """The engine's side of an owner, as far as it is steered from here."""

    def pause(self) -> None: ...

    def release_kv(self) -> None: ...

    def resume(self) -> None: ...


@dataclass(slots=True, eq=False)
class Owner:
    """has_client: its own is still there, so no other is. is_held: too much of it is unread."""

    request_id: str
    generation: Generation
    has_client: bool = True
    is_held: bool = False


class Owners:
    """By stream id, while the engine's stream is open. held: how often one had to wait."""

    def __init__(self, spool: Spool, max_stream_bytes: int) -> None:
        self.held = 0
        self._spool = spool
        self._max_stream_bytes = max_stream_bytes
        self._owners: dict[str, Owner] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def add(self, stream_id: str, request_id: str, generation: Generation) -> None:
        self._owners[stream_id] = Owner(request_id, generation)

    def remove(self, stream_id: str) -> None:
        del self._owners[stream_id]

    def find(self, stream_id: str, request_id: str = "") -> Owner | None:
        """The stream's owner; None if it has none, or another than ``request_id``."""
        owner = self._owners.get(stream_id)
        return owner if owner is not None and request_id in ("", owner.request_id) else None

    def pace(self, stream_id: str) -> None:
        """A stream whose own client is gone fills the spool at the engine's pace: it waits when too much is unread."""
        owner = self._owners.get(stream_id)
        if owner is None or owner.has_client:
            return
        unread = self._spool.undelivered_bytes(stream_id)
        if not owner.is_held and unread > _HOLD_SHARE * self._max_stream_bytes:
            owner.is_held = True
            self.held += 1
            owner.generation.pause()
            owner.generation.release_kv()
        elif owner.is_held and unread < _GO_ON_SHARE * self._max_stream_bytes:
            owner.is_held = False
            owner.generation.resume()
