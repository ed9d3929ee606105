"""Normal readers that keep every batch slot busy, so that whoever comes next has to queue."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from sluiceway.cli.bench.departures import Situation, connection_settings, request, wait_until, wait_until_idle
from sluiceway.cli.bench.readers import Leave, Normal, ReaderLoop
from sluiceway.cli.stack import Stack


class Holders:
    """Inside the context ``count`` streams decode; leaving it, they are gone again."""

    def __init__(self, stack: Stack, count: int) -> None:
        self._stack = stack
        self._count = count
        self._loop = ReaderLoop()

    def __enter__(self) -> Self:
        self._loop.__enter__()
        names = [f"holder-{number}" for number in range(self._count)]
        self._streams = [
            self._loop.open(
                self._loop.connect(connection_settings(self._stack)), request(Situation.DECODING, name), Normal()
            )
            for name in names
        ]
        wait_until(self._stack, names, Situation.DECODING.holds, "the streams that keep the batch busy")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams:
            self._loop.leave(stream, Leave.RST_STREAM)
        self._loop.close()
        if kind is None:
            wait_until_idle(self._stack)
