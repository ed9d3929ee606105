"""Triton's generate and generate_stream through the real Envoy, gateway and Triton."""

from __future__ import annotations

import contextlib
import json
import socket
import time

import httpx
import httpx_sse
import pytest

from e2e.inference import TIMEOUT_S, wait_for
from sluiceway.cli.bench.cancel import SMALL_PAUSE
from sluiceway.cli.bench.reference import scripted
from sluiceway.cli.stack import Stack, StackSettings

pytestmark = pytest.mark.e2e

STREAM = "/v2/models/llm/generate_stream"
WHOLE = "/v2/models/llm/generate"
PROMPT = "river"
TOKENS = 200
LONG = 20_000
CONFIG = {
    "engine": {"kind": "scripted", "step_s": 0.002, "kv_blocks": 4096},
    "flow_control": SMALL_PAUSE,
    "policy": {"mode": "hold"},  # paused streams keep their KV: that it comes back is what is looked at
}
KV_FREE_S = 1.0  # a bound for a busy test machine


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    settings = StackSettings(run_dir=tmp_path_factory.mktemp("http"), config=CONFIG, gateway=True)
    with Stack(settings) as running:
        yield running


def body(tokens=TOKENS, **others):
    parameters = {"max_tokens": tokens, "ignore_eos": True}
    return {"text_input": PROMPT, "parameters": parameters, "exclude_input_in_output": True, **others}


def url(stack, path):
    return f"http://127.0.0.1:{stack.ports.envoy}{path}"


@contextlib.contextmanager
def never_reader(stack, tokens=LONG):
    """A client over HTTP/1.1 that asks and then does not read, with a small receive buffer."""
    data = json.dumps(body(tokens, stream=True)).encode()
    head = f"POST {STREAM} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", stack.ports.envoy))
        client.sendall(head.encode() + data)
        yield client


def text_of(response):
    """Of an event stream in chunks, as it came."""
    _, _, rest = response.partition(b"\r\n\r\n")
    content = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        content += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    events = [line.removeprefix("data: ") for line in content.decode().split("\n") if line.startswith("data: ")]
    return "".join(json.loads(event)["text_output"] for event in events)


def only_stream(stack, state):
    streams = stack.statistics()["streams"]
    return next((stream for stream in streams if stream["state"] == state), None)


def blocks_free(stack):
    return stack.statistics()["engine"]["kv_blocks_free"]


def test_a_whole_answer_is_the_engines(stack):
    response = httpx.post(url(stack, WHOLE), json=body(), timeout=TIMEOUT_S)

    assert response.status_code == 200
    assert response.json()["text_output"] == expected()


def test_a_streamed_answer_is_the_same(stack):
    with (
        httpx.Client(timeout=TIMEOUT_S) as client,
        httpx_sse.connect_sse(client, "POST", url(stack, STREAM), json=body(stream=True)) as source,
    ):
        texts = [json.loads(event.data)["text_output"] for event in source.iter_sse()]

    assert len(texts) > 5
    assert "".join(texts) == expected()


def test_a_reader_that_never_reads_is_paused_and_then_reads_everything(stack):
    with never_reader(stack, tokens := 4000) as client:
        paused = wait_for(lambda: only_stream(stack, "paused"), what="paused")
        assert paused["produced"]["tokens"] < tokens / 4
        client.settimeout(TIMEOUT_S)
        received = bytearray()
        while not received.endswith(b"\r\n0\r\n\r\n"):
            data = client.recv(65536)
            assert data, "the connection ended before the answer did"
            received += data
    assert text_of(bytes(received)) == expected(tokens)
    wait_for(lambda: not stack.statistics()["streams"], what="the stream is gone")


def test_a_client_that_leaves_gives_its_blocks_back(stack):
    free = blocks_free(stack)
    with never_reader(stack):
        wait_for(lambda: only_stream(stack, "paused"), what="paused")
    left_at = time.monotonic()
    wait_for(lambda: not stack.statistics()["streams"] and blocks_free(stack) == free, what="blocks back")
    assert time.monotonic() - left_at < KV_FREE_S


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", STREAM, b"{", 400),
        ("POST", "/v2/models/nobody/generate", b'{"text_input": "a"}', 404),
        ("GET", STREAM, b"", 405),
        ("POST", "/v2/repository/models/llm/unload", b"{}", 404),
    ],
)
def test_what_is_not_served_is_refused(stack, method, path, content, status):
    response = httpx.request(method, url(stack, path), content=content, timeout=TIMEOUT_S)

    assert response.status_code == status
    assert response.json()["error"]


def test_a_path_that_no_route_names_is_envoys_404(stack):
    assert httpx.get(url(stack, "/metrics"), timeout=TIMEOUT_S).status_code == 404


def expected(tokens=TOKENS):
    return scripted(CONFIG, [PROMPT], tokens)[0].text
