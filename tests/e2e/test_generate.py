"""What a client sees of a request, through the real Envoy and Triton."""

from __future__ import annotations

import queue

import pytest

from e2e.inference import ask, infer_request, inference_stub, is_final, outputs, wait_for
from sluiceway.cli.bench.readers import ConnectionSettings, Leave, Never, Normal, ReaderLoop, StopAfter, StreamRequest
from sluiceway.cli.stack import Stack, StackSettings
from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.engine.scripted import scripted_answer
from sluiceway.runtime.codec import Outputs
from sluiceway.runtime.wire import response_bytes

pytestmark = pytest.mark.e2e

CONFIG = {"engine": {"kind": "scripted", "step_s": 0.005, "script": "unicode"}}
ALL = {"return_token_ids": True, "return_frame": True, "return_finish_reason": True}


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with Stack(StackSettings(run_dir=tmp_path_factory.mktemp("generate"), config=CONFIG)) as running:
        yield running


def reference(prompt, tokens):
    token_ids, text = scripted_answer(list(prompt.encode()), tokens, "unicode")
    return token_ids, text.decode(errors="replace")


def idle(stack):
    """The statistics once nothing is open any more."""

    def at_rest():
        statistics = stack.statistics()
        return statistics if not statistics["streams"] else None

    return wait_for(at_rest, what="an idle backend")


def streams(stack):
    return {stream["client_id"]: stream for stream in stack.statistics()["streams"]}


def wait_for_state(stack, client_id, *states):
    wait_for(lambda: streams(stack).get(client_id, {}).get("state") in states, what=f"{client_id} in {states}")


def test_a_stream_is_the_reference_in_whole_characters(stack):
    request = infer_request(client_id="whole", stream=True, sampling={"max_tokens": 200}, **ALL)
    frames = [outputs(response) for response in ask(stack.ports.envoy, request)]
    token_ids, text = reference("river", 200)
    assert "".join(frame["text_output"] for frame in frames) == text
    assert [token_id for frame in frames for token_id in frame["token_ids"]] == token_ids
    assert [frame["frame"][0] for frame in frames] == list(range(len(frames)))
    first = 0
    for frame in frames:
        assert frame["frame"][1] == first
        first += len(frame["token_ids"])
    assert [frame["finish_reason"] for frame in frames] == [""] * (len(frames) - 1) + ["length"]
    statistics = idle(stack)
    assert statistics["engine"]["kv_blocks_free"] == statistics["engine"]["kv_blocks_total"]


def test_extra_outputs_only_when_asked_for(stack):
    responses = ask(stack.ports.envoy, infer_request(stream=True))
    assert {name for response in responses for name in outputs(response)} == {"text_output"}
    assert [is_final(response) for response in responses] == [False] * (len(responses) - 1) + [True]


def test_a_whole_answer_is_one_response_and_begins_with_the_prompt(stack):
    (response,) = ask(stack.ports.envoy, infer_request(sampling={"max_tokens": 40}, return_finish_reason=True))
    assert outputs(response) == {"text_output": "river" + reference("river", 40)[1], "finish_reason": "length"}
    request = infer_request(sampling={"max_tokens": 40}, exclude_input_in_output=True)
    (response,) = ask(stack.ports.envoy, request)
    assert outputs(response) == {"text_output": reference("river", 40)[1]}


def test_two_requests_on_one_rpc_each_get_their_answer(stack):
    requests = [
        infer_request(prompt=prompt, client_id=prompt, stream=True, sampling={"max_tokens": 60}, **ALL)
        for prompt in ("river", "stone")
    ]
    responses = ask(stack.ports.envoy, *requests)
    for prompt in ("river", "stone"):
        own = [outputs(response) for response in responses if response.infer_response.id == prompt]
        assert "".join(frame["text_output"] for frame in own) == reference(prompt, 60)[1]
        assert [frame["finish_reason"] for frame in own][-1] == "length"
    rpcs = {e["client_id"]: e["rpc_id"] for e in stack.finished()["finished"] if e["client_id"] in ("river", "stone")}
    assert len(set(rpcs.values())) == 1


@pytest.mark.parametrize("asked", [{}, ALL, {"return_frame": True}], ids=["text", "all", "frame"])
def test_the_wire_size_we_book_is_the_wire_size(stack, asked):
    """Sizes of real messages, as protobuf counts them behind Envoy."""
    responses = ask(stack.ports.envoy, infer_request(client_id="sized", stream=True, **asked))
    wanted = Outputs(**{name.removeprefix("return_"): True for name in asked})
    for response in responses:
        got = outputs(response)
        frame = Frame(
            sequence=0,
            first_token_index=0,
            token_ids=tuple(got.get("token_ids", ())),
            text=got["text_output"],
            wire_bytes=0,
            finish_reason=FinishReason(got["finish_reason"]) if got.get("finish_reason") else None,
        )
        size = response_bytes(frame, wanted, model="llm", version="1", client_id="sized")
        assert size == 5 + response.ByteSize()


def test_who_does_not_read_is_paused_and_a_neighbour_flows(stack):
    with ReaderLoop() as loop:
        settings = ConnectionSettings(port=stack.ports.envoy, stream_window=4096)
        request = StreamRequest(prompt="river", max_tokens=4000, client_id="never")
        stuck = loop.open(loop.connect(settings), request, StopAfter(0))  # unlike Never, it parses what comes
        wait_for_state(stack, "never", "paused", "preempted")
        request = StreamRequest(prompt="stone", max_tokens=300, client_id="normal")
        flowing = loop.open(loop.connect(ConnectionSettings(port=stack.ports.envoy)), request, Normal())
        assert flowing.wait(30)
        assert flowing.reading.text == reference("stone", 300)[1]
        wait_for(lambda: stack.statistics()["decisions"], what="a decision")
        assert set(stack.statistics()["decisions"]) == {"hold"}  # nobody else wants what it holds
        seen = streams(stack)["never"]
        assert seen["state"] == "paused"
        assert seen["sent"]["bytes"] >= seen["forwarded"]["bytes"] >= seen["delivered"]["bytes"]
        assert seen["backlog"]["bytes"] <= 16384 + 4096 + 8192
        assert seen["produced"]["tokens"] < 1000
        loop.set_policy(stuck, Normal())
        assert stuck.wait(60)
        assert stuck.reading.text == reference("river", 4000)[1]
        assert list(stuck.reading.token_ids) == reference("river", 4000)[0]
    (entry,) = [e for e in stack.finished()["finished"] if e["client_id"] == "never"]
    assert entry["finish_reason"] == "length"
    assert entry["pauses"] >= 1


def test_a_cancelled_call_frees_kv(stack):
    before = stack.statistics()["totals"]
    requests: queue.Queue = queue.Queue()
    requests.put(infer_request(client_id="cancels", stream=True, sampling={"max_tokens": 4000}))
    with inference_stub(stack.ports.envoy) as stub:
        call = stub.ModelStreamInfer(iter(requests.get, None))
        for _ in range(10):
            next(call)
        call.cancel()
        statistics = idle(stack)
        requests.put(None)
    assert statistics["engine"]["kv_blocks_free"] == statistics["engine"]["kv_blocks_total"]
    assert statistics["totals"]["aborts"] == before["aborts"] + 1
    assert statistics["totals"]["disconnects"] == before["disconnects"] + 1
    (entry,) = [e for e in stack.finished()["finished"] if e["client_id"] == "cancels"]
    assert entry["finish_reason"] == "cancelled"
    assert entry["t_client_gone"] <= entry["t_kv_free"] <= entry["t_client_gone"] + 1


def test_round_envoy_a_short_answer_passes_and_a_long_one_ends_with_a_reason(stack):
    """No x-request-id, so no signal: the stream may use its window and then has to end."""
    short = infer_request(client_id="short", stream=True, sampling={"max_tokens": 20}, **ALL)
    assert outputs(ask(stack.ports.triton_grpc, short)[-1])["finish_reason"] == "length"
    long = infer_request(client_id="long", stream=True, sampling={"max_tokens": 4000}, **ALL)
    assert outputs(ask(stack.ports.triton_grpc, long)[-1])["finish_reason"] == "no_signal"


def test_round_envoy_a_cancelled_call_is_found_by_asking(stack):
    requests: queue.Queue = queue.Queue()
    requests.put(infer_request(client_id="direct", stream=True, sampling={"max_tokens": 4000}))
    with inference_stub(stack.ports.triton_grpc) as stub:
        call = stub.ModelStreamInfer(iter(requests.get, None))
        next(call)
        call.cancel()
        idle(stack)
        requests.put(None)
    (entry,) = [e for e in stack.finished()["finished"] if e["client_id"] == "direct"]
    assert (entry["finish_reason"], entry["rpc_id"]) == ("cancelled", None)
    assert stack.statistics()["pump"]["cancel_polls"] > 0


def test_a_reader_that_leaves_while_paused_frees_its_slot(stack):
    with ReaderLoop() as loop:
        settings = ConnectionSettings(port=stack.ports.envoy, stream_window=4096)
        request = StreamRequest(prompt="river", max_tokens=4000, client_id="leaves")
        stuck = loop.open(loop.connect(settings), request, Never())
        wait_for_state(stack, "leaves", "paused", "preempted")
        loop.leave(stuck, Leave.TCP_RST)
        statistics = idle(stack)
    assert statistics["engine"]["kv_blocks_free"] == statistics["engine"]["kv_blocks_total"]
