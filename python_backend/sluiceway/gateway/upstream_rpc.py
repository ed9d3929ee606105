"""One generation at Triton, as the gateway's handlers see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from sluiceway.client.frames import Frame, GenerationError

SHUTDOWN = "shutdown: the gateway is going away; ask again"


class Rpc(Protocol):
    """What ``sluiceway.client.rpc.AsyncRpc`` offers."""

    def __aiter__(self) -> AsyncIterator[Frame]: ...
    def ack(self, sequence: int, body_bytes: int | None = None) -> None: ...
    async def levels(self) -> dict[str, object]: ...
    async def cancel(self) -> None: ...
    def abort(self) -> None: ...
    async def aclose(self) -> None: ...


class UpstreamRpc:
    """An Rpc that holds one of the process's places until it is closed.

    When the gateway goes away it ends with GenerationError "shutdown", whatever it waits for.
    """

    def __init__(self, rpc: Rpc, release: Callable[[UpstreamRpc], None], *, tells_bytes: bool) -> None:
        self._rpc = rpc
        self._release = release
        self._tells_bytes = tells_bytes
        self._is_shutting_down = False

    async def __aiter__(self) -> AsyncIterator[Frame]:
        """Raises GenerationError; ends after the frame with a finish reason."""
        ended = False
        try:
            async for frame in self._rpc:
                ended = frame.finish_reason is not None
                yield frame
        except Exception:
            if not self._is_shutting_down:
                raise
        if self._is_shutting_down and not ended:
            raise GenerationError("shutdown", SHUTDOWN, retry_after_s=1.0)

    def written(self, sequence: int, body_bytes: int) -> None:
        """For EventStream's ``on_written``: the frame is taken once the front lets those bytes out (ADR 11)."""
        self._rpc.ack(sequence, body_bytes if self._tells_bytes else None)

    def ack(self, sequence: int, body_bytes: int | None = None) -> None:
        """The client itself says that it took the frame, or (with ``body_bytes``) as ``written``."""
        self._rpc.ack(sequence, body_bytes if self._tells_bytes else None)

    async def levels(self) -> dict[str, object]:
        return await self._rpc.levels()

    async def cancel(self) -> None:
        """Ask for the end: the last frame still comes."""
        await self._rpc.cancel()

    def abort(self) -> None:
        """End it now; its place is free at once, since what iterates it may never have begun."""
        self._rpc.abort()
        self._release(self)

    def shut_down(self) -> None:
        """The gateway goes away."""
        self._is_shutting_down = True
        self._rpc.abort()

    async def aclose(self) -> None:
        """Idempotent; leaves no task behind."""
        try:
            await self._rpc.aclose()
        finally:
            self._release(self)
