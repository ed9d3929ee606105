"""Bad input gets one clear error and takes nothing with it."""

from __future__ import annotations

import grpc
import pytest

from e2e.inference import ask, errors, infer_request, outputs, wait_for
from sluiceway.cli.stack import Stack, StackError, StackSettings

pytestmark = pytest.mark.e2e

CONFIG = {
    "engine": {"kind": "scripted", "step_s": 0.005, "kv_blocks": 64},
    "admission": {"max_prompt_tokens": 900, "max_prompt_bytes": 5000, "max_tokens_limit": 2000, "max_streams": 4},
}
TEXT = ("BYTES", [1])


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with Stack(StackSettings(run_dir=tmp_path_factory.mktemp("bad-input"), config=CONFIG)) as running:
        yield running


BAD = {
    "empty prompt": (infer_request(b""), "text_input: empty; a prompt has at least 1 character"),
    "not UTF-8": (infer_request(b"ab\xff"), "text_input: not UTF-8 at byte 2"),
    "too many bytes": (infer_request("x" * 5001), "text_input: 5001 bytes, at most 5000 are taken"),
    "too many tokens": (
        infer_request("x" * 901),
        "text_input: 901 tokens, at most 900 are taken (max_prompt_tokens)",
    ),
    "unknown key": (
        infer_request(sampling={"max_token": 1}),
        "sampling_parameters: unknown key 'max_token'; did you mean max_tokens or min_tokens?",
    ),
    "mistyped": (
        infer_request(sampling={"temperature": "hot"}),
        "sampling_parameters.temperature: must be a number from 0 to 10, got a string of 3 characters",
    ),
    "bool for int": (
        infer_request(sampling={"max_tokens": True}),
        "sampling_parameters.max_tokens: must be an integer from 1 to 2000, got true",
    ),
    "negative": (
        infer_request(sampling={"max_tokens": -5}),
        "sampling_parameters.max_tokens: must be an integer from 1 to 2000, got -5",
    ),
    "absurd": (
        infer_request(sampling={"max_tokens": 10**18}),
        f"sampling_parameters.max_tokens: must be an integer from 1 to 2000, got {10**18}",
    ),
    "not JSON": (infer_request(sampling=b"{"), "sampling_parameters: not JSON at character 1"),
    "sampling not UTF-8": (infer_request(sampling=b"\xff"), "sampling_parameters: not UTF-8 at byte 0"),
    "streamed echo": (
        infer_request(stream=True, exclude_input_in_output=False),
        "exclude_input_in_output: must be true (or left out) when stream is true",
    ),
}


def totals(stack):
    statistics = wait_for(lambda: s if not (s := stack.statistics())["streams"] else None, what="an idle backend")
    return statistics["totals"], statistics["engine"]


@pytest.mark.parametrize("name", BAD)
def test_each_is_named_and_nothing_is_lost(stack, name):
    request, expected = BAD[name]
    before, _ = totals(stack)
    responses = ask(stack.ports.envoy, request)
    assert len(responses) == 1
    (problem,) = errors(responses)
    assert problem.startswith(expected)
    assert "Traceback" not in problem
    assert ".py" not in problem
    after, engine = totals(stack)
    assert engine["kv_blocks_free"] == engine["kv_blocks_total"]
    assert after["refused"] == before["refused"] + 1
    assert after["accepted"] == before["accepted"]


def test_a_wrong_request_does_not_end_its_neighbour_on_the_rpc(stack):
    bad = infer_request(b"", client_id="bad")
    good = infer_request(client_id="good", stream=True, sampling={"max_tokens": 50}, return_finish_reason=True)
    responses = ask(stack.ports.envoy, bad, good, bad)
    assert len(errors(responses)) == 2
    good = [outputs(response) for response in responses if not response.error_message]
    assert good[-1]["finish_reason"] == "length"


def test_a_forged_request_id_is_refused(stack):
    """Envoy's header and the client's parameter arrive under one name."""
    forged = infer_request(stream=True)
    forged.parameters["x-request-id"].string_param = "somebody else's"
    (problem,) = errors(ask(stack.ports.envoy, forged))
    assert problem == "request parameters: the key 'x-request-id' is given twice"


def test_a_prompt_as_long_as_the_context(stack, tmp_path):
    config = {"engine": {"kind": "scripted", "kv_blocks": 4}}
    with Stack(StackSettings(run_dir=tmp_path, config=config)) as small:
        (problem,) = errors(ask(small.ports.envoy, infer_request("x" * 64)))
        assert problem == "text_input: 64 tokens leave no room for an answer in a context of 64 tokens"
        (fits,) = ask(small.ports.envoy, infer_request("x" * 63, exclude_input_in_output=True))
        assert outputs(fits)["text_output"]


def test_the_context_ends_an_answer(stack):
    """As vLLM does: max_tokens beyond the context is not an error."""
    wanted = {"return_token_ids": True, "return_finish_reason": True}
    request = infer_request("x" * 900, stream=True, sampling={"max_tokens": 2000}, **wanted)
    frames = [outputs(response) for response in ask(stack.ports.envoy, request)]
    assert frames[-1]["finish_reason"] == "length"
    assert sum(len(frame["token_ids"]) for frame in frames) == 64 * 16 - 900


def test_one_too_many_is_told_which_limit_and_when_to_come_back(stack):
    requests = [infer_request(client_id=str(n), stream=True, sampling={"max_tokens": 200}) for n in range(5)]
    (problem,) = errors(ask(stack.ports.envoy, *requests))
    assert problem == "admission.max_streams: 5 needed, 4 allowed; try again in 1 s"
    _, engine = totals(stack)
    assert engine["kv_blocks_free"] == engine["kv_blocks_total"]


def test_triton_itself_refuses_what_its_configuration_rules_out(stack):
    two = infer_request(raw={"text_input": ("BYTES", [2], b"\x01\x00\x00\x00a" * 2)})
    missing = infer_request()
    del missing.inputs[0]
    del missing.raw_input_contents[0]
    for request in (two, missing):
        try:
            problems = errors(ask(stack.ports.envoy, request))
        except grpc.RpcError as error:
            problems = [error.details()]
        assert problems
        assert "text_input" in problems[0]
    totals(stack)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"engine": {"kind": "scripted"}, "flow_control": {"low": {"bytes": 99999}}},
            "low.bytes (99999) must not be above high.bytes (16384)",
        ),
        ({"engine": {"kind": "scripted", "kv_block": 3}}, "engine.kv_block: unknown setting; did you mean kv_blocks"),
        ({"engine": {"kind": "torch", "model_dir": "/nowhere"}}, "no such directory"),
    ],
)
def test_a_wrong_configuration_refuses_to_start_and_says_why(tmp_path, config, expected):
    with pytest.raises(StackError) as caught:
        Stack(StackSettings(run_dir=tmp_path, config=config)).start(timeout_s=60)
    assert expected in str(caught.value)
