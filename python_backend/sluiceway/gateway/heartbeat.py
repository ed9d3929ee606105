"""A sign of life on a connection on which nothing else was written for a while."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from sluiceway.gateway.clock import Clock


class Outlet(Protocol):
    """Where everything to one client is written. last_write_at: on the clock; is_writing: a write waits."""

    last_write_at: float

    @property
    def is_writing(self) -> bool: ...


async def beat(outlet: Outlet, clock: Clock, every_s: float, write: Callable[[], Awaitable[object]]) -> None:
    """Call ``write`` whenever nothing was written for ``every_s``, for ever."""
    due = outlet.last_write_at + every_s
    while True:
        await clock.sleep(due - clock.now())
        now = clock.now()
        due = outlet.last_write_at + every_s
        if now < due:
            continue
        due = now + every_s
        # A write that waits for the client needs no sign of life behind it.
        if not outlet.is_writing:
            await write()
