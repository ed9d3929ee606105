"""Tells a program that it reads too slowly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from sluiceway.client.frames import Slow


class Unread(Protocol):
    @property
    def unread_frames(self) -> int: ...


class SlowWatch:
    """on_slow is called once each time that frames wait unread for ``after_s`` seconds, on the event loop."""

    def __init__(self, on_slow: Callable[[Slow], None] | None, after_s: float) -> None:
        self._on_slow = on_slow
        self._after_s = after_s

    @contextlib.contextmanager
    def over(self, source: Unread) -> Iterator[None]:
        if self._on_slow is None:
            yield
            return
        task = asyncio.get_running_loop().create_task(self._look(source, self._on_slow))
        try:
            yield
        finally:
            task.cancel()

    async def _look(self, source: Unread, on_slow: Callable[[Slow], None]) -> None:
        loop = asyncio.get_running_loop()
        since: float | None = None
        was_told = False
        while True:
            await asyncio.sleep(self._after_s / 4)
            unread = source.unread_frames
            if not unread:
                since, was_told = None, False
            elif since is None:
                since = loop.time()
            elif not was_told and loop.time() - since >= self._after_s:
                was_told = True
                on_slow(Slow(unread_frames=unread, unread_s=loop.time() - since))
