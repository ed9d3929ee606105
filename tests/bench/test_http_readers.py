"""The clients over HTTP against the real gateway: what they leave in their socket is what they say they read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

import pytest
from token_server import TEXT, TokenServer

from gateway.harness import Tokenizer
from sluiceway.cli.bench.readers import (
    Alternate,
    Bursts,
    ClientPlan,
    ConnectionSettings,
    Dribble,
    Leave,
    Never,
    Normal,
    Rate,
    ReaderLoop,
    ReaderProcess,
    StopAfter,
    StreamRequest,
)
from sluiceway.cli.bench.readers.dialects import Completions, GenerateStream
from sluiceway.gateway.server import listen, make_server
from sluiceway.gateway.settings import GatewaySettings

OVER_HTTP1 = ("sse", "websocket", "websocket_without_acks")
IDS = [1, 2, 3]


@contextlib.contextmanager
def gateway(triton_port):
    """Yields the port of a gateway in a thread of its own."""
    settings = GatewaySettings(
        listen="127.0.0.1:0", triton=f"127.0.0.1:{triton_port}", delivery="transport", server={"drain_s": 0}
    )
    listening = listen(settings)
    servers = []
    ready = threading.Event()

    async def serve():
        server = make_server(settings, Tokenizer())
        servers.append(server)
        ready.set()
        await server._serve([listening])

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield listening.getsockname()[1]
    finally:
        servers[0].should_exit = True
        thread.join(20)
        listening.close()


@pytest.fixture
def server():
    with TokenServer() as tokens, gateway(tokens.port) as port:
        tokens.gateway_port = port
        yield tokens


@pytest.fixture
def loop():
    with ReaderLoop() as loop:
        yield loop


def settings(server, protocol, **changes):
    return ConnectionSettings(port=server.gateway_port, protocol=protocol, **changes)


def start(server, loop, policy, protocol, *, tokens=100, **changes):
    connection = loop.connect(settings(server, protocol, **changes))
    return loop.open(connection, StreamRequest(prompt="x", max_tokens=tokens, client_id="c"), policy)


@pytest.mark.parametrize("protocol", OVER_HTTP1)
@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        (Normal(), {}),
        (Normal(), {"recv_bytes": 1}),
        (Rate(200_000), {"receive_buffer": 4096}),
        (Bursts(2048, max_wait_s=0.1), {"receive_buffer": 4096}),
        (Alternate(0.01, 0.02), {"receive_buffer": 4096}),
        (Dribble(20_000), {}),
    ],
)
def test_every_reader_that_reads_gets_the_whole_answer(server, loop, policy, changes, protocol):
    stream = start(server, loop, policy, protocol, **changes)
    assert stream.wait(20)
    reading = stream.reading
    assert reading.text == TEXT * 100
    assert reading.token_ids == list(range(100))
    assert reading.frames == [(index, index) for index in range(100)]
    assert (reading.finish_reason, reading.error) == ("length", "")
    assert reading.opened_at <= reading.headers_at <= reading.arrivals[0] <= reading.closed_at


@pytest.mark.parametrize("protocol", OVER_HTTP1)
def test_a_never_reader_takes_nothing_and_gets_everything_once_it_reads(server, loop, protocol):
    stream = start(server, loop, Never(), protocol, tokens=3000, receive_buffer=4096)
    assert not stream.wait(0.7)
    assert stream.reading.token_ids == []
    loop.set_policy(stream, Normal())
    assert stream.wait(20)
    assert stream.reading.text == TEXT * 3000


@pytest.mark.parametrize("protocol", OVER_HTTP1)
def test_a_reader_that_stops_has_what_it_read_by_then(server, loop, protocol):
    stream = start(server, loop, StopAfter(2000), protocol, tokens=3000, receive_buffer=4096)
    assert not stream.wait(0.7)
    assert 2000 <= stream.reading.data_bytes < 20_000
    assert 0 < len(stream.reading.token_ids) < 3000


@pytest.mark.parametrize("protocol", OVER_HTTP1)
@pytest.mark.parametrize("how", [Leave.FIN, Leave.TCP_RST, Leave.RST_STREAM])
def test_the_server_notices_every_way_of_leaving(server, loop, how, protocol):
    stream = start(server, loop, Never(), protocol, tokens=10_000, receive_buffer=4096)
    assert not stream.wait(0.3)
    loop.leave(stream, how)
    assert server.cancelled.wait(10)
    assert stream.reading.left == how
    assert stream.ended


@pytest.mark.parametrize("protocol", OVER_HTTP1)
def test_errors_reach_the_reading(server, loop, protocol):
    stream = start(server, loop, Normal(), protocol, tokens=0 if protocol != "sse" else -1)
    assert stream.wait(10)
    assert "max_tokens" in stream.reading.error or "400" in stream.reading.error


def test_clients_run_in_a_process_of_their_own(server):
    plans = [
        ClientPlan(
            connection=settings(server, protocol),
            request=StreamRequest(prompt="x", max_tokens=20, client_id=protocol),
            repeat=2,
        )
        for protocol in OVER_HTTP1
    ]
    readings = ReaderProcess(plans).wait(30)
    assert sorted(each.client_id for each in readings) == sorted(f"{p}#{turn}" for p in OVER_HTTP1 for turn in (0, 1))
    assert all(each.text == TEXT * 20 for each in readings)


def test_a_protocol_that_nobody_speaks_is_refused(server, loop):
    with pytest.raises(KeyError):
        loop.connect(settings(server, "morse"))


def events(*values):
    return b"".join(b"id: 0\ndata: " + json.dumps(value).encode() + b"\n\n" for value in values)


def chunk(text, token_ids, finish_reason=None):
    return {"choices": [{"text": text, "token_ids": token_ids, "finish_reason": finish_reason}]}


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_events_are_read_whatever_pieces_they_come_in(step):
    data = b": heartbeat\n\n" + events(chunk("añ", [1, 2]), chunk("", [], None), chunk("b", [3], "stop"))
    data += b"data: [DONE]\n\n"
    decoder = Completions().decoder()
    messages = [message for at in range(0, len(data), step) for message in decoder.feed(data[at : at + step])]
    assert [message.text for message in messages] == ["añ", "", "b"]
    assert [message.frame for message in messages] == [(0, 0), (1, 2), (2, 2)]
    assert [token for message in messages for token in message.token_ids] == IDS
    assert messages[-1].finish_reason == "stop"


def test_tritons_own_frontend_writes_one_token_without_its_list():
    value = {"text_output": "a", "token_ids": 7, "frame": [3, 9], "finish_reason": ""}
    (message,) = GenerateStream().decoder().feed(events(value))
    assert (message.token_ids, message.frame) == ((7,), (3, 9))


@pytest.mark.parametrize("error", ["no", {"message": "no"}])
def test_an_error_event_is_an_error(error):
    (message,) = Completions().decoder().feed(events({"error": error}))
    assert message.error == "no"
