"""``/v1/stream`` when something is wrong: refusals, clients that leave, that do not read, that may not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from client.fake_triton import answer, error_message, frame_message, inputs_of, run
from gateway.harness import Tokenizer, gateway, silence, until_opened
from gateway.websocket_client import GENERATE, hear, opened, rest, say


@pytest.mark.parametrize(
    ("first", "param", "close_code"),
    [
        ("nope", None, 1008),
        (b"{}", None, 1008),
        ({"type": "ack", "frame": 0}, "type", 1008),
        ({"type": "generate"}, "messages", 1008),
        ({"type": "generate", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "messages", 1008),
        ({"type": "generate", "prompt": 1}, "prompt", 1008),
        ({"type": "generate", "prompt": "x", "stream": False}, "stream", 1008),
        ({"type": "generate", "prompt": "x", "model": "gpt-9"}, "model", 1008),
        ({"type": "generate", "prompt": "x", "tools": []}, "tools", 1008),
        ({"type": "resume_stream", "stream_id": "a"}, "frame", 1008),
    ],
)
def test_a_wrong_first_message_is_refused(first, param, close_code):
    async def check():
        async with opened(silence, first=first) as (fake, connection):
            (error,), code = await rest(connection)
            assert error["type"] == "error"
            assert error["error"]["param"] == param
            assert code == close_code
            assert fake.opened == []

    run(check())


@pytest.mark.parametrize(
    ("text", "code", "close_code", "has_hint"),
    [
        ("text_input: too long", "invalid_value", 1008, False),
        ("stream_unknown: none", "stream_unknown", 1008, False),
        ("unavailable: admission: full; try again in 1 s", "unavailable", 1013, True),
    ],
)
def test_the_models_refusals(text, code, close_code, has_hint):
    async def script(_requests, call):
        await call.write(error_message(text))

    async def check():
        async with opened(script) as (_, connection):
            (error,), closed = await rest(connection)
            assert error["error"]["code"] == code
            assert closed == close_code
            assert ("retry_after_s" in error) is has_hint

    run(check())


def test_a_client_that_leaves_while_nothing_is_written_ends_the_rpc_at_once():
    async def check():
        async with opened(silence) as (fake, connection):
            await until_opened(fake)
            connection.transport.abort()
            async with asyncio.timeout(2):
                await fake.was_cancelled.wait()
            assert connection.upstream.open_streams == 0

    run(check())


def test_a_client_that_closes_ends_the_rpc_at_once():
    async def check():
        async with opened(silence) as (fake, connection):
            await until_opened(fake)
            await connection.close()
            async with asyncio.timeout(2):
                await fake.was_cancelled.wait()

    run(check())


def test_silence_before_the_first_message_ends_the_connection():
    async def check():
        async with opened(silence, first=None, request_timeout_s=0.1) as (_, connection):
            (error,), code = await rest(connection)
            assert error["error"]["code"] == "request_timeout"
            assert code == 1008

    run(check())


def test_a_message_above_the_limit_ends_the_connection():
    async def check():
        settings = {"websocket": {"max_message_bytes": 1024}}
        first = GENERATE | {"prompt": "x" * 2000}
        async with opened(silence, first=first, **settings) as (fake, connection):
            assert (await rest(connection)) == ([], 1009)
            assert fake.opened == []

    run(check())


@contextlib.asynccontextmanager
async def unread(script):
    """Yields the gateway's client and a socket with small buffers on which an answer is open and nothing is read."""
    handshake = (
        "GET /v1/stream HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n"
    )
    generate = json.dumps(GENERATE).encode()
    loop = asyncio.get_running_loop()
    async with gateway(script, tokenizer=Tokenizer()) as (_, client):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", client.port))
            await loop.sock_sendall(sock, handshake.encode())
            assert b" 101 " in await loop.sock_recv(sock, 1024)
            await loop.sock_sendall(sock, bytes([0x81, 0x80 | len(generate)]) + b"\0\0\0\0" + generate)
            yield client, sock


def answer_of(frames, frame_bytes, seen):
    """A script that puts what is acknowledged into ``seen``."""

    async def script(requests, call):
        writing = asyncio.create_task(write_all(call))
        while (message := await requests.get()) is not None:
            seen.append(inputs_of(message)["ack_frame"])
        await writing

    async def write_all(call):
        for sequence in range(frames):
            await call.write(frame_message(sequence, "x" * frame_bytes))

    return script


def test_an_answer_that_nobody_reads_is_not_taken_from_triton():
    """Of 4 MiB; what is written waits for the client, and what waits is not acknowledged. Nor do pongs pile up."""
    seen = []
    ping = b"\x89\x80\0\0\0\0"

    async def check():
        async with unread(answer_of(4096, 1024, seen)) as (client, sock):
            for _ in range(100):
                await asyncio.get_running_loop().sock_sendall(sock, ping * 1000)
                await asyncio.sleep(0.01)
            assert seen
            assert seen[-1] < 64
            (connection,) = client.connections
            assert connection.transport.get_write_buffer_size() < 8 * 1024

    run(check())


def test_a_frame_is_not_acknowledged_before_all_of_it_has_left():
    seen = []

    async def check():
        async with unread(answer_of(1, 2**18, seen)) as (_, sock):
            await asyncio.sleep(0.3)
            assert seen == []
            received = 0
            while received < 2**18:
                received += len(await asyncio.get_running_loop().sock_recv(sock, 2**16))
            while not seen:  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(0.01)
            assert seen == [0]

    run(check())


@pytest.mark.parametrize(
    ("origin", "allowed", "is_let_in"),
    [
        (None, [], True),
        ("http://127.0.0.1:{port}", [], True),
        ("https://elsewhere.test", [], False),
        ("null", [], False),
        ("https://elsewhere.test", ["https://elsewhere.test"], True),
    ],
)
def test_pages_of_other_hosts_may_not_open_streams(origin, allowed, is_let_in):
    async def check():
        settings = {"websocket": {"allowed_origins": allowed}}
        async with gateway(answer(["a"]), tokenizer=Tokenizer(), **settings) as (_, client):
            url = f"ws://127.0.0.1:{client.port}/v1/stream"
            opening = connect(url, origin=origin and origin.format(port=client.port))
            if is_let_in:
                async with opening as connection:
                    await say(connection, GENERATE)
                    assert (await hear(connection))["text"] == "a"
            else:
                with pytest.raises(InvalidStatus) as refused:
                    await opening
                assert refused.value.response.status_code == 403
                assert json.loads(refused.value.response.body)["error"]["code"] == "origin_not_allowed"

    run(check())


def test_plain_http_is_told_to_upgrade():
    async def check():
        async with gateway(silence) as (_, client):
            response = await client.get("/v1/stream")
            assert response.status_code == 426
            assert response.headers["upgrade"] == "websocket"

    run(check())


def test_a_gateway_that_goes_away_says_so():
    async def check():
        async with opened(silence, server={"drain_s": 0}) as (fake, connection):
            await until_opened(fake)
            await connection.upstream.shut_down(0)
            (error,), code = await rest(connection)
            assert error["error"]["code"] == "shutdown"
            assert code == 1013

    run(check())
