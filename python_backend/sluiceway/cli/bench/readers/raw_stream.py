"""One request of a raw HTTP/2 client: the handle, and the loop-side state beside it."""

from __future__ import annotations

import asyncio

from sluiceway.cli.bench.readers.dialects import Dialect
from sluiceway.cli.bench.readers.policy import Flow, ReadingPolicy
from sluiceway.cli.bench.readers.reading import Stream
from sluiceway.cli.bench.readers.wire import StreamRequest


class RawStream(Stream):
    """``reading``, ``wait`` and ``ended`` are for any thread, the rest for the loop thread."""

    def __init__(
        self,
        stream_id: int,
        request: StreamRequest,
        policy: ReadingPolicy,
        window: int,
        dialect: Dialect,
        *,
        half_close: bool,
    ) -> None:
        super().__init__(request.client_id)
        self.stream_id = stream_id
        self.policy = policy
        self.flow = Flow(window=window, opened_at=self.reading.opened_at)
        self.decoder = dialect.decoder()
        self.unsent = bytearray(dialect.body(request))
        self.half_close = half_close
        self.parses = policy.parses  # for good: messages cannot be picked up in the middle of one
        self.timer: asyncio.TimerHandle | None = None
