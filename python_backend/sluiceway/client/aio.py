"""The asynchronous client."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Self

import grpc

from sluiceway.client.frames import Frame, GenerateRequest, GenerationError, Slow
from sluiceway.client.rpc import AsyncRpc
from sluiceway.client.slow import SlowWatch

CHANNEL_OPTIONS = [
    # Without these two, gRPC reads megabytes ahead of the program and nobody can see that it stopped.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 16 * 1024),
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
]
_RETRIED = frozenset({"unavailable", "spool_unreachable", "unknown", "internal"})
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 2.0


class AsyncClient:
    """Generations from one Sluiceway, each on an RPC of its own, over one connection.

    address: host:port of Envoy. credentials: None for plain text. metadata: for every RPC, such as
    ``[("authorization", "Bearer ...")]``. resume_within_s: how long a broken connection is tried again.
    """

    def __init__(
        self,
        address: str,
        *,
        model: str = "llm",
        credentials: grpc.ChannelCredentials | None = None,
        metadata: list[tuple[str, str]] | None = None,
        resume_within_s: float = 30.0,
    ) -> None:
        self.model = model
        self.resume_within_s = resume_within_s
        self._metadata = [] if metadata is None else metadata
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._channel.close()

    def generate(
        self,
        prompt: str,
        *,
        sampling: Mapping[str, object] | None = None,
        resumable: bool = True,
        timeout_s: float | None = None,
        on_slow: Callable[[Slow], None] | None = None,
        slow_after_s: float = 1.0,
    ) -> AsyncGeneration:
        """Ask for an answer. Iterate it, and close it (``async with`` does).

        sampling: as the model's ``sampling_parameters``. resumable: a connection that breaks is made again and the
        answer goes on where it stopped. timeout_s: of everything. on_slow: called once each time that frames wait
        unread for ``slow_after_s`` seconds; must not block.
        """
        request = GenerateRequest(prompt=prompt, sampling=sampling or {}, resumable=resumable, model=self.model)
        return AsyncGeneration(self, request, timeout_s=timeout_s, watch=SlowWatch(on_slow, slow_after_s))

    def resume(self, stream_id: str, next_frame: int, *, timeout_s: float | None = None) -> AsyncGeneration:
        """Come back to a stream of an earlier process: its frames from ``next_frame`` on."""
        request = GenerateRequest(resume_stream_id=stream_id, resume_frame=next_frame, resumable=True, model=self.model)
        return AsyncGeneration(self, request, timeout_s=timeout_s, watch=SlowWatch(None, 1.0))

    def open(self, request: GenerateRequest, timeout_s: float | None) -> AsyncRpc:
        """One RPC; Envoy names it for its records."""
        return AsyncRpc(
            self._channel, request, request_id=secrets.token_hex(16), metadata=self._metadata, timeout_s=timeout_s
        )


class AsyncGeneration:
    """One answer, over as many RPCs as it takes. A frame is acknowledged when the next one is asked for."""

    def __init__(
        self, client: AsyncClient, request: GenerateRequest, *, timeout_s: float | None, watch: SlowWatch
    ) -> None:
        self._client = client
        self._request = request
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._ends_at = None if timeout_s is None else self._loop.time() + timeout_s
        self._rpc: AsyncRpc | None = None
        self.stream_id = request.resume_stream_id
        self.next_frame = request.resume_frame or 0
        self.resumed = 0
        self.finish_reason: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[Frame]:
        """Frames in order, each once; ends after the one with a finish reason. Raises GenerationError.

        "detached" is no end as long as the program reads: the stream is taken up again.
        """
        patience = _Patience(self._client.resume_within_s, self._loop)
        while self.finish_reason is None:
            try:
                async for frame in self._attempt():
                    patience.reset()
                    yield frame
            except GenerationError as error:
                if not self._may_resume(error) or not await patience.wait(error.retry_after_s, self._ends_at):
                    raise
                self.resumed += 1

    async def text(self) -> str:
        """The whole (rest of the) answer."""
        return "".join([frame.text async for frame in self])

    async def cancel(self) -> None:
        """Ask for the end: the frame with finish reason "cancelled" still comes."""
        if self._rpc is not None:
            await self._rpc.cancel()

    async def levels(self) -> dict[str, object]:
        """How far backend, Envoy and this program are; {} while no RPC is open."""
        return {} if self._rpc is None else await self._rpc.levels()

    async def aclose(self) -> None:
        """Idempotent; an answer that is not complete is given up."""
        if self._rpc is not None:
            rpc, self._rpc = self._rpc, None
            await rpc.aclose()

    async def _attempt(self) -> AsyncIterator[Frame]:
        """One RPC's frames."""
        self._rpc = rpc = self._client.open(self._request_now(), self._left_s())
        try:
            with self._watch.over(rpc):
                async for frame in rpc:
                    self.stream_id = frame.stream_id or self.stream_id
                    is_last = frame.finish_reason is not None
                    is_detached = frame.finish_reason == "detached"
                    self.next_frame = frame.sequence + (0 if is_detached else 1)
                    if is_detached and self.stream_id:
                        return
                    if is_last:
                        self.finish_reason = frame.finish_reason
                    yield frame
                    rpc.ack(frame.sequence)
        finally:
            await rpc.aclose()

    def _request_now(self) -> GenerateRequest:
        if not self.stream_id:
            return self._request
        return GenerateRequest(
            resume_stream_id=self.stream_id, resume_frame=self.next_frame, resumable=True, model=self._request.model
        )

    def _left_s(self) -> float | None:
        if self._ends_at is None:
            return None
        return max(0.0, self._ends_at - self._loop.time())

    def _may_resume(self, error: GenerationError) -> bool:
        """What is safe to try again: a stream that is known by its id, or nothing but a refusal that says when."""
        if error.code not in _RETRIED:
            return False
        return bool(self.stream_id) or (self.next_frame == 0 and error.retry_after_s is not None)


class _Patience:
    """How long a broken connection is tried again: twice as long each time, ``within_s`` seconds in all."""

    def __init__(self, within_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self._within_s = within_s
        self._loop = loop
        self.reset()

    def reset(self) -> None:
        """A frame came."""
        self._since: float | None = None
        self._backoff_s = _FIRST_BACKOFF_S

    async def wait(self, retry_after_s: float | None, ends_at: float | None) -> bool:
        """Sleep until the next attempt; False at once if there is none."""
        now = self._loop.time()
        if self._since is None:
            self._since = now
        delay_s = max(self._backoff_s, retry_after_s or 0.0)
        until = self._since + self._within_s if ends_at is None else min(ends_at, self._since + self._within_s)
        if now + delay_s > until:
            return False
        self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)
        await asyncio.sleep(delay_s)
        return True
