"""Seeing that a client left while nothing is written to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_T = TypeVar("_T")


class ClientGone(Exception):  # noqa: N818 - an event, not a fault
    """Nobody is there to answer to."""


async def until_disconnect(receive: Receive) -> None:
    """Return when the client left. The request's body must have been read to its end."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _T], on_disconnect: Callable[[], None]) -> _T:
    """The result of ``work``. If the client leaves first: ``on_disconnect`` at once, ``work`` cancelled, ClientGone."""
    working = asyncio.create_task(work)
    gone = asyncio.create_task(until_disconnect(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        on_disconnect()
        raise ClientGone
    finally:
        await end(working, gone)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs and wait for it; what they raise is theirs."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
