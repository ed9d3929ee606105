"""Clients that vanish and come back, on the real Triton, Envoy and Redis."""

from __future__ import annotations

import struct
import time

import pytest

from e2e.inference import ask, errors, infer_request, outputs, wait_for
from sluiceway.cli.bench.readers import ConnectionSettings, Leave, Normal, ReaderLoop, StopAfter, StreamRequest
from sluiceway.cli.bench.reference import scripted
from sluiceway.cli.bench.resume import CONFIG, PROMPTS, TOKENS, play
from sluiceway.cli.redis import RedisServer
from sluiceway.cli.stack import Stack, StackSettings
from sluiceway.core.commands import Frame
from sluiceway.runtime.codec import Outputs
from sluiceway.runtime.wire import response_bytes

pytestmark = pytest.mark.e2e

TTL_S = 3.0  # of an answer whose client left
REFERENCES = dict(zip(PROMPTS, scripted(CONFIG, PROMPTS, TOKENS), strict=True))
ALL = {"return_token_ids": True, "return_frame": True, "return_finish_reason": True}
ROUNDS = range(8)  # of the bench's 200
UNKNOWN = "0" * 32


def start(tmp_path_factory, name, **spool):
    settings = StackSettings(run_dir=tmp_path_factory.mktemp(name), config=CONFIG | {"spool": spool})
    return Stack(settings)


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with start(tmp_path_factory, "resume", ttl_s=TTL_S) as running:
        yield running


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis"), password="pass-word") as running:
        yield running


@pytest.fixture(scope="module")
def replicas(tmp_path_factory, redis_server):
    url = {"redis": {"url": redis_server.url}}
    with start(tmp_path_factory, "one", **url) as one, start(tmp_path_factory, "other", **url) as other:
        yield one, other


def come_back(stack, stream_id, frame):
    """All responses to a client that comes back."""
    raw = {
        "resume_stream_id": ("BYTES", [1], struct.pack("<I", len(stream_id)) + stream_id.encode()),
        "resume_frame": ("INT64", [1], struct.pack("<q", frame)),
    }
    request = infer_request(raw=raw, **ALL)
    del request.inputs[0], request.raw_input_contents[0]  # no prompt
    return ask(stack.ports.envoy, request)


def begin(stack, tokens=TOKENS):
    """The frames of an answer that is read at once, and its stream id."""
    request = infer_request(stream=True, resumable=True, sampling={"max_tokens": tokens}, client_id="begun", **ALL)
    responses = ask(stack.ports.envoy, request)
    frames = [outputs(response) for response in responses]
    return frames, frames[0]["stream_id"]


@pytest.mark.parametrize("number", ROUNDS)
def test_who_vanishes_at_a_random_frame_gets_exactly_the_rest(stack, number):
    with ReaderLoop() as loop:
        assert play(loop, [stack], number, REFERENCES).problem == ""


@pytest.mark.parametrize("number", ROUNDS)
def test_also_from_another_replica(replicas, number):
    with ReaderLoop() as loop:
        assert play(loop, replicas, number, REFERENCES).problem == ""


def test_the_id_comes_with_the_first_frame_and_with_the_last_and_sizes_are_booked_right(stack):
    request = infer_request(stream=True, resumable=True, sampling={"max_tokens": 30}, client_id="begun", **ALL)
    responses = ask(stack.ports.envoy, request)
    frames = [outputs(response) for response in responses]
    assert [("stream_id" in frame) for frame in frames] == [True] + [False] * (len(frames) - 2) + [True]
    assert frames[0]["stream_id"] == frames[-1]["stream_id"]
    first = Frame(0, 0, tuple(frames[0]["token_ids"]), frames[0]["text_output"], 0)
    wanted = Outputs(token_ids=True, frame=True, finish_reason=True)
    names = {"model": "llm", "version": "1", "client_id": "begun", "stream_id": frames[0]["stream_id"]}
    assert response_bytes(first, wanted, **names) == 5 + responses[0].ByteSize()


def test_an_answer_that_was_read_can_be_read_again_from_any_frame_until_it_expires(stack):
    frames, stream_id = begin(stack)
    for first in (0, 17, len(frames) - 1):
        again = [outputs(response) for response in come_back(stack, stream_id, first)]
        for name in ("text_output", "token_ids", "frame", "finish_reason"):
            assert [frame[name] for frame in again] == [frame[name] for frame in frames[first:]]
    time.sleep(TTL_S + 0.5)  # counted from when its last client left
    assert errors(come_back(stack, stream_id, 0))[0].startswith("stream_expired: ")


def test_each_refusal_says_which(stack):
    frames, stream_id = begin(stack, tokens=10)
    for name, frame, code in (
        (UNKNOWN, 0, "stream_unknown: "),
        (stream_id, len(frames), "stream_complete: "),
    ):
        assert errors(come_back(stack, name, frame))[0].startswith(code)
    assert errors(ask(stack.ports.envoy, infer_request(resumable=True)))[0].startswith("resumable: only with stream")
    wait_for(lambda: stack.statistics()["spool"]["refusals"].get("stream_complete"))


def test_a_connection_that_only_looks_open_is_let_go(stack):
    with ReaderLoop() as loop:
        request = StreamRequest(prompt="river", max_tokens=2000, client_id="stuck", resumable=True)
        connection = loop.connect(ConnectionSettings(port=stack.ports.envoy, stream_window=4096))
        stuck = loop.open(connection, request, StopAfter(0))
        wait_for(lambda: len(stuck.reading.frames) > 5)
        stream_id = stuck.reading.stream_id
        resumed = StreamRequest(prompt="", client_id="back", resume=(stream_id, 3))
        back = loop.open(loop.connect(ConnectionSettings(port=stack.ports.envoy)), resumed, Normal())
        wait_for(lambda: len(back.reading.frames) > 30)
        assert back.reading.frames[0][0] == 3
        loop.set_policy(stuck, Normal())
        wait_for(lambda: stuck.reading.finish_reason)
        assert (stuck.reading.finish_reason, stuck.reading.stream_id) == ("detached", stream_id)
        loop.leave(back, Leave.TCP_RST)
    # Nobody comes back: when the stream expires (3 s), so does the generation.
    wait_for(lambda: not stack.statistics()["streams"])
    statistics = stack.statistics()
    assert statistics["engine"]["kv_blocks_free"] == statistics["engine"]["kv_blocks_total"]


def test_redis_that_dies_on_the_way_leaves_the_streams_and_coming_back_to_the_same_replica(replicas, redis_server):
    one, other = replicas
    with ReaderLoop() as loop:
        request = StreamRequest(prompt="river", max_tokens=TOKENS, sampling={"temperature": 0}, resumable=True)
        stream = loop.open(loop.connect(ConnectionSettings(port=one.ports.envoy)), request, Normal())
        wait_for(lambda: len(stream.reading.frames) > 10)
        redis_server.stop()
        time.sleep(0.3)
        loop.leave(stream, Leave.TCP_RST)
        reading = stream.reading
        wait_for(lambda: not one.statistics()["spool"]["redis"]["connected"])
        assert one.statistics()["spool"]["redis"]["errors"] > 0
        assert errors(come_back(other, reading.stream_id, 0))[0].startswith("spool_unreachable: ")
        again = [outputs(response) for response in come_back(one, reading.stream_id, len(reading.frames))]
    assert reading.text + "".join(frame["text_output"] for frame in again) == REFERENCES["river"].text
    redis_server.start()
    wait_for(lambda: one.statistics()["spool"]["redis"]["connected"])
    log = (one.run_dir / "logs" / "triton.log").read_text(errors="replace")
    assert "WITHOUT REDIS" in log
    assert "pass-word" not in log


def test_without_redis_at_the_start_the_stack_serves_and_says_so(tmp_path_factory, tmp_path):
    absent = RedisServer(tmp_path, password="pass-word")
    with start(tmp_path_factory, "alone", redis={"url": absent.url}) as alone:
        frames, stream_id = begin(alone, tokens=20)
        again = [outputs(response) for response in come_back(alone, stream_id, 5)]
        assert [frame["frame"] for frame in again] == [frame["frame"] for frame in frames[5:]]
        assert not alone.statistics()["spool"]["redis"]["connected"]
        log = (alone.run_dir / "logs" / "triton.log").read_text(errors="replace")
    assert f"127.0.0.1:{absent.port}" in log
    assert "WITHOUT REDIS" in log
    assert "pass-word" not in log
