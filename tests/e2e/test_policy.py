"""What the policy does about readers that are behind, through the real Envoy and Triton."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.inference import wait_for
from sluiceway.cli.bench.readers import ConnectionSettings, Normal, ReaderLoop, StopAfter, StreamRequest
from sluiceway.cli.bench.readers.raw_h2 import RawStream
from sluiceway.cli.stack import Stack, StackSettings
from sluiceway.engine.scripted import scripted_answer

pytestmark = pytest.mark.e2e

# Room for the tokens of three readers that stop, and for little else.
ENGINE = {"kind": "scripted", "step_s": 0.005, "kv_blocks": 72, "max_batch_streams": 4}
STUCK = ("stuck-1", "stuck-2", "stuck-3")


@contextmanager
def running(tmp_path, **config) -> Iterator[Stack]:
    with Stack(StackSettings(run_dir=tmp_path, config={"engine": ENGINE, **config})) as stack:
        yield stack


def streams(stack):
    return {stream["client_id"]: stream for stream in stack.statistics()["streams"]}


def open_stuck(loop: ReaderLoop, stack: Stack, name: str, tokens: int) -> RawStream:
    settings = ConnectionSettings(port=stack.ports.envoy, stream_window=4096)
    request = StreamRequest(prompt="river", max_tokens=tokens, client_id=name, sampling={"ignore_eos": True})
    return loop.open(loop.connect(settings), request, StopAfter(0))


def reference(tokens: int) -> str:
    return scripted_answer(list(b"river"), tokens)[1].decode()


def test_readers_that_hold_what_others_want_give_it_up_and_lose_nothing(tmp_path):
    with running(tmp_path) as stack, ReaderLoop() as loop:
        stuck = [open_stuck(loop, stack, name, 1000) for name in STUCK]
        wait_for(lambda: sum(stream["pauses"] > 0 for stream in streams(stack).values()) == 3, what="three paused")
        normal = StreamRequest(prompt="stone", max_tokens=600, client_id="normal")
        flowing = loop.open(loop.connect(ConnectionSettings(port=stack.ports.envoy)), normal, Normal())
        assert flowing.wait(60)
        assert flowing.reading.finish_reason == "length"
        seen = streams(stack)
        assert sum(seen[name]["kv_blocks"] for name in STUCK) <= 72 - 600 // 16
        for stream in stuck:
            loop.set_policy(stream, Normal())
        for stream in stuck:
            assert stream.wait(60)
            assert stream.reading.text == reference(1000)
        statistics = wait_for(
            lambda: found if not (found := stack.statistics())["streams"] else None, what="an idle backend"
        )
    assert statistics["engine"]["kv_blocks_free"] == 72
    assert statistics["engine"]["host_blocks_free"] == statistics["engine"]["host_blocks_total"]
    counted = sum(count for reasons in statistics["decisions"].values() for count in reasons.values())
    lines = [line.partition("sluiceway: decision ")[2] for line in log(tmp_path) if "sluiceway: decision {" in line]
    assert len(lines) == counted
    assert {json.loads(line)["action"] for line in lines} == set(statistics["decisions"])


def test_a_silent_reader_gets_a_short_answer_where_a_deployment_says_so(tmp_path):
    degraded = {"enabled": True, "after_s": 1.0, "max_tokens": 12}
    with running(tmp_path, degraded=degraded) as stack, ReaderLoop() as loop:
        stream = open_stuck(loop, stack, STUCK[0], 1000)
        wait_for(lambda: stack.statistics()["totals"]["degraded"] == 1, what="a degraded answer")
        loop.set_policy(stream, Normal())
        assert stream.wait(60)
        assert stream.reading.finish_reason == "degraded"
        assert stream.reading.text.endswith(reference(12))
        begun = stream.reading.text.removesuffix(reference(12))
        assert reference(1000).startswith(begun)


def log(run_dir) -> list[str]:
    return [line for path in run_dir.glob("**/*.log") for line in path.read_text(errors="replace").splitlines()]
