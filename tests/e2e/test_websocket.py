"""WebSocket clients through the real Envoy, gateway and Triton."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest
from websockets.sync.client import connect

from e2e.inference import TIMEOUT_S, wait_for
from sluiceway.cli.bench.reference import scripted
from sluiceway.cli.stack import Stack, StackSettings

pytestmark = pytest.mark.e2e

PROMPT = "river"
TOKENS = 200
LONG = 8000
CONFIG = {
    "engine": {"kind": "scripted", "step_s": 0.0005, "kv_blocks": 4096},
    "flow_control": {
        "window": {"bytes": 8192, "tokens": 1024, "frames": 1024},
        "high": {"bytes": 8192, "tokens": 1024, "frames": 1024},
        "low": {"bytes": 2048, "tokens": 256, "frames": 256},
    },
    "policy": {"mode": "hold"},
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    settings = StackSettings(run_dir=tmp_path_factory.mktemp("websocket"), config=CONFIG, gateway=True)
    with Stack(settings) as running:
        yield running


def generate(tokens=TOKENS, **others):
    return {"type": "generate", "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, **others}


@contextlib.contextmanager
def opened(stack, first, *, receive_buffer=None):
    """A connection on which ``first`` was said; it reads from its socket only what ``recv`` asks for."""
    with socket.socket() as sock:
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(("127.0.0.1", stack.ports.envoy))
        url = f"ws://127.0.0.1:{stack.ports.envoy}/v1/stream"
        with connect(url, sock=sock, ping_interval=None, max_queue=1, close_timeout=0) as connection:
            connection.send(json.dumps(first))
            yield connection


def hear(connection):
    return json.loads(connection.recv(timeout=TIMEOUT_S))


def frames(connection, number=None):
    """The next ``number`` frames, or all. The connection's end comes later: Envoy's delayed_close_timeout."""
    heard = []
    while len(heard) != number and not (heard and heard[-1]["finish_reason"]):
        message = hear(connection)
        if message["type"] == "frame":
            heard.append(message)
    return heard


def text_of(heard):
    return "".join(frame["text"] for frame in heard)


def expected(tokens=TOKENS):
    return scripted(CONFIG, [PROMPT], tokens)[0].text


def state(stack):
    return [stream["state"] for stream in stack.statistics()["streams"]]


def test_an_answer(stack):
    with opened(stack, generate()) as connection:
        heard = frames(connection)
    assert text_of(heard) == expected()
    assert [frame["frame"] for frame in heard] == list(range(len(heard)))
    assert heard[-1]["finish_reason"] == "length"
    assert heard[-1]["usage"]["completion_tokens"] == TOKENS


@pytest.mark.parametrize("acks", [False, True])
def test_a_reader_that_stops_pauses_its_stream_and_loses_nothing(stack, acks):
    with opened(stack, generate(LONG, acks=acks), receive_buffer=4096) as connection:
        heard = frames(connection, 1)
        wait_for(lambda: state(stack) == ["paused"], what="the stream pauses")
        while heard[-1]["finish_reason"] is None:
            if acks:
                connection.send(json.dumps({"type": "ack", "frame": heard[-1]["frame"]}))
            heard += frames(connection, 1)
    assert text_of(heard) == expected(LONG)
    assert [frame["frame"] for frame in heard] == list(range(len(heard)))
    wait_for(lambda: not stack.statistics()["streams"], what="the stream is gone")


def test_acks_tell_the_backend_what_the_program_consumed(stack):
    """The socket is read all the time; the program says nothing, and its stream pauses all the same."""
    with opened(stack, generate(LONG, acks=True)) as connection:
        heard = []
        with contextlib.suppress(TimeoutError):
            while True:
                heard.append(json.loads(connection.recv(timeout=2)))
        assert state(stack) == ["paused"]
        assert len(text_of(frame for frame in heard if frame["type"] == "frame")) < 20_000
        connection.send('{"type":"cancel"}')
        assert frames(connection)[-1]["finish_reason"] == "cancelled"


def test_pause_and_resume(stack):
    with opened(stack, generate(LONG)) as connection:
        heard = frames(connection, 3)
        connection.send('{"type":"pause"}')
        wait_for(lambda: state(stack) == ["paused"], what="the stream pauses")
        connection.send('{"type":"levels"}')
        message = hear(connection)
        while message["type"] != "levels":
            heard.append(message)
            message = hear(connection)
        assert message["levels"]["state"] == "paused"
        connection.send('{"type":"resume"}')
        heard += frames(connection)
    assert text_of(heard) == expected(LONG)


def test_a_client_that_leaves_ends_its_stream(stack):
    with opened(stack, generate(LONG)) as connection:
        frames(connection, 1)
    wait_for(lambda: not stack.statistics()["streams"], what="the stream is gone")


def test_a_killed_connection_is_taken_up_again(stack):
    with opened(stack, generate(resumable=True)) as connection:
        heard = frames(connection, 5)
        connection.socket.close()
    first = {"type": "resume_stream", "stream_id": heard[0]["stream_id"], "frame": heard[-1]["frame"] + 1}
    with opened(stack, first) as connection:
        heard += frames(connection)
    assert text_of(heard) == expected()
    assert [frame["frame"] for frame in heard] == list(range(len(heard)))
