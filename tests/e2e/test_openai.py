"""The official openai client, untouched, through the real Envoy, gateway and Triton."""

from __future__ import annotations

import itertools
import json

import httpx
import httpx_sse
import openai
import pytest

from e2e.inference import TIMEOUT_S, wait_for
from sluiceway.cli.bench.reference import scripted
from sluiceway.cli.stack import Stack, StackSettings

pytestmark = pytest.mark.e2e

PROMPT = "river"
TOKENS = 100
LONG = 5000
CONFIG = {"engine": {"kind": "scripted", "step_s": 0.002, "kv_blocks": 4096}}
MESSAGES = [{"role": "user", "content": PROMPT}]
MORE = {"ignore_eos": True}


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with Stack(StackSettings(run_dir=tmp_path_factory.mktemp("openai"), config=CONFIG, gateway=True)) as running:
        yield running


@pytest.fixture
def client(stack):
    base_url = f"http://127.0.0.1:{stack.ports.envoy}/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", timeout=TIMEOUT_S, max_retries=0) as made:
        yield made


def expected(tokens=TOKENS):
    return scripted(CONFIG, [PROMPT], tokens)[0].text


def test_models(client):
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id) == model


def test_a_streamed_completion_is_the_engines(client):
    chunks = list(
        client.completions.create(
            model="llm",
            prompt=PROMPT,
            max_tokens=TOKENS,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=MORE,
        )
    )
    *parts, usage = chunks
    assert "".join(part.choices[0].text for part in parts) == expected()
    assert parts[-1].choices[0].finish_reason == "length"
    assert len(parts) > 5
    assert usage.usage.completion_tokens == TOKENS


def test_a_whole_completion_is_the_same(client):
    answer = client.completions.create(model="llm", prompt=PROMPT, max_tokens=TOKENS, extra_body=MORE)
    assert answer.choices[0].text == expected()
    assert answer.usage.completion_tokens == TOKENS


def test_a_chat_streamed_and_whole_agree(client):
    asked = {"model": "llm", "messages": MESSAGES, "max_tokens": TOKENS, "seed": 1, "extra_body": MORE}
    whole = client.chat.completions.create(**asked).choices[0]
    streamed = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    assert "".join(each.delta.content or "" for each in streamed) == whole.message.content
    assert len(whole.message.content) > TOKENS / 2
    assert streamed[0].delta.role == whole.message.role == "assistant"
    assert streamed[-1].finish_reason == whole.finish_reason == "length"


def test_refusals_are_the_clients_own_errors(client):
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="llm", messages=MESSAGES, logprobs=True)
    assert refused.value.param == "logprobs"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="llm", prompt="river " * 20_000, stream=True)
    assert too_long.value.code == "context_length_exceeded"
    assert too_long.value.param == "prompt"


def test_a_client_that_closes_its_stream_ends_it(stack, client):
    stream = client.completions.create(model="llm", prompt=PROMPT, max_tokens=LONG, stream=True, extra_body=MORE)
    next(iter(stream))
    assert stack.statistics()["streams"]
    stream.close()
    wait_for(lambda: not stack.statistics()["streams"], what="the stream is gone")


def test_a_stream_that_broke_goes_on_after_its_last_event(stack):
    url = f"http://127.0.0.1:{stack.ports.envoy}/v1/completions"
    body = {"model": "llm", "prompt": PROMPT, "max_tokens": TOKENS, "stream": True, "resumable": True, **MORE}
    texts, last = [], ""
    for taken in (3, 5, None):  # events read before the connection is cut
        headers = {"last-event-id": last} if last else {}
        with (
            httpx.Client(timeout=TIMEOUT_S) as client,
            httpx_sse.connect_sse(client, "POST", url, json=body, headers=headers) as source,
        ):
            for event in itertools.islice(source.iter_sse(), taken):
                if event.data != "[DONE]":
                    last = event.id
                    texts.append(json.loads(event.data)["choices"][0]["text"])
    assert "".join(texts) == expected()
