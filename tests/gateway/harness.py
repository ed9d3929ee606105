"""The gateway's real server on a real socket, in front of a scripted Triton."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import httpx

from client.fake_triton import TIMEOUT_S, frame_message, inputs_of, serving
from sluiceway.gateway.server import listen, make_server
from sluiceway.gateway.settings import GatewaySettings

REQUEST_ID = "11111111-2222-4333-8444-555555555555"


class Tokenizer:
    """A prompt is its roles and contents; a token is a character."""

    has_chat_template = True

    def prompt(self, messages, tools):
        return "".join(f"{each['role']}:{each['content']};" for each in messages) + "tools" * bool(tools)

    def count(self, text):
        return len(text)


async def acks(requests, until):
    """The (ack_frame, ack_body_bytes) that come, up to frame ``until``."""
    seen = []
    while not seen or seen[-1][0] < until:
        message = await requests.get()
        if message is None:
            return seen
        inputs = inputs_of(message)
        if "ack_frame" in inputs:
            seen.append((inputs["ack_frame"], inputs.get("ack_body_bytes")))
    return seen


def until_acknowledged(frames, seen):
    """A script that sends ``frames`` frames, puts the acks of them into ``seen``, and then ends the answer."""

    async def script(requests, call):
        for sequence in range(frames):
            await call.write(frame_message(sequence, "x"))
        seen.extend(await acks(requests, frames - 1))
        await call.write(frame_message(frames, "", "stop"))

    return script


async def silence(_requests, _call):
    await asyncio.sleep(60)


async def until_opened(fake):
    while not fake.opened:  # noqa: ASYNC110 - a list has no event
        await asyncio.sleep(0.01)


async def leave_unanswered(fake, client, path, body):
    """Post ``body``, close the connection once Triton has the request, and wait for the end of its RPC."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(head.encode() + data)
    await writer.drain()
    await until_opened(fake)
    writer.close()
    async with asyncio.timeout(2):
        await fake.was_cancelled.wait()
    assert client.upstream.open_streams == 0


@contextlib.asynccontextmanager
async def gateway(*scripts, tokenizer=None, **changes):
    """Yields the fake Triton and an httpx client of the gateway."""
    async with serving(*scripts) as (fake, address):
        settings = GatewaySettings(**{"listen": "127.0.0.1:0", "triton": address, "triton_channels": 1} | changes)
        listening = listen(settings)
        port = listening.getsockname()[1]
        server = make_server(settings, tokenizer)
        server.install_signal_handlers = lambda: None
        task = asyncio.create_task(server._serve([listening]))
        try:
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", headers={"x-request-id": REQUEST_ID}, timeout=TIMEOUT_S
            ) as client:
                client.port = port
                client.upstream = server.upstream
                client.connections = server.server_state.connections
                yield fake, client
        finally:
            server.should_exit = True
            await task
            listening.close()


async def raw(port, data, *, until=b"", receive_buffer=None):
    """What the gateway says to ``data`` until it closes the connection or has said ``until``."""
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock)
    writer.write(data)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while not until or until not in received:
            chunk = await reader.read(65_536)
            if not chunk:
                break
            received += chunk
    writer.close()
    return received
