"""A client of ``/v1/stream``."""

from __future__ import annotations

import contextlib
import json

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from gateway.harness import REQUEST_ID, Tokenizer, gateway

GENERATE = {"type": "generate", "prompt": "hi"}


@contextlib.asynccontextmanager
async def opened(*scripts, first=GENERATE, origin=None, sock=None, **settings):
    """Yields the fake Triton and a connection on which ``first`` was said."""
    async with gateway(*scripts, tokenizer=Tokenizer(), **settings) as (fake, client):
        url = f"ws://127.0.0.1:{client.port}/v1/stream"
        headers = {"x-request-id": REQUEST_ID}
        async with connect(url, additional_headers=headers, origin=origin, sock=sock, ping_interval=None) as connection:
            connection.upstream = client.upstream
            if first is not None:
                await say(connection, first)
            yield fake, connection


async def say(connection, message):
    await connection.send(message if isinstance(message, str | bytes) else json.dumps(message))


async def hear(connection):
    return json.loads(await connection.recv())


async def rest(connection):
    """All messages until the close, and its code."""
    return [json.loads(text) async for text in until_closed(connection)], connection.close_code


async def until_closed(connection):
    with contextlib.suppress(ConnectionClosed):
        while True:
            yield await connection.recv()
