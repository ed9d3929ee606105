"""The client for programs without an event loop: the asynchronous one, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Self, TypeVar

import grpc

from sluiceway.client.aio import AsyncClient, AsyncGeneration
from sluiceway.client.frames import Frame, Slow

_T = TypeVar("_T")


class Client:
    """As AsyncClient; may be used from several threads. Close it (``with`` does)."""

    def __init__(
        self,
        address: str,
        *,
        model: str = "llm",
        credentials: grpc.ChannelCredentials | None = None,
        metadata: list[tuple[str, str]] | None = None,
        resume_within_s: float = 30.0,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sluiceway-client", daemon=True)
        self._thread.start()

        async def make() -> AsyncClient:
            return AsyncClient(
                address, model=model, credentials=credentials, metadata=metadata, resume_within_s=resume_within_s
            )

        self._client = self.run(make())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent; generations that are open end."""
        if self._loop.is_closed():
            return
        self.run(self._client.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def generate(
        self,
        prompt: str,
        *,
        sampling: Mapping[str, object] | None = None,
        resumable: bool = True,
        timeout_s: float | None = None,
        on_slow: Callable[[Slow], None] | None = None,
        slow_after_s: float = 1.0,
    ) -> Generation:
        """As AsyncClient.generate; on_slow is called in the client's thread."""

        async def make() -> AsyncGeneration:
            return self._client.generate(
                prompt,
                sampling=sampling,
                resumable=resumable,
                timeout_s=timeout_s,
                on_slow=on_slow,
                slow_after_s=slow_after_s,
            )

        return Generation(self, self.run(make()))

    def resume(self, stream_id: str, next_frame: int, *, timeout_s: float | None = None) -> Generation:
        """As AsyncClient.resume."""

        async def make() -> AsyncGeneration:
            return self._client.resume(stream_id, next_frame, timeout_s=timeout_s)

        return Generation(self, self.run(make()))

    def run(self, coroutine: Coroutine[object, object, _T]) -> _T:
        """On the client's loop; waits for the result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class Generation:
    """As AsyncGeneration. The program that iterates it is its reader: it reads on when the program does."""

    def __init__(self, client: Client, generation: AsyncGeneration) -> None:
        self._client = client
        self._generation = generation

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Frame]:
        """Raises GenerationError."""
        frames = aiter(self._generation)
        while (frame := self._client.run(_next(frames))) is not None:
            yield frame

    @property
    def stream_id(self) -> str:
        return self._generation.stream_id

    @property
    def next_frame(self) -> int:
        return self._generation.next_frame

    @property
    def finish_reason(self) -> str | None:
        return self._generation.finish_reason

    @property
    def resumed(self) -> int:
        return self._generation.resumed

    def text(self) -> str:
        return self._client.run(self._generation.text())

    def cancel(self) -> None:
        self._client.run(self._generation.cancel())

    def levels(self) -> dict[str, object]:
        return self._client.run(self._generation.levels())

    def close(self) -> None:
        self._client.run(self._generation.aclose())


async def _next(frames: AsyncIterator[Frame]) -> Frame | None:
    return await anext(frames, None)
