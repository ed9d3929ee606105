"""What OpenAI's requests may hold, and how a wrong one is refused."""

from __future__ import annotations

import pytest

from sluiceway.gateway.errors import Problem
from sluiceway.gateway.openai import event_id, fields
from sluiceway.gateway.openai.chat_request import ChatRequest
from sluiceway.gateway.openai.completion_request import CompletionRequest
from sluiceway.gateway.openai.event_id import EventId

USER = {"role": "user", "content": "hi"}
CHAT = {"model": "llm", "messages": [USER]}
TEXT = {"model": "llm", "prompt": "hi"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"model": None}, "model", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "hi"}, "messages", "invalid_value"),
        ({"messages": [{"content": "hi"}]}, "messages.0", "invalid_value"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages.0", "invalid_value"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "invalid_value"),
        ({"messages": [{"role": "assistant"}]}, "messages", "invalid_value"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "messages.0.tool_call_id",
            "missing_required_parameter",
        ),
        ({"temperatur": 1}, "temperatur", "unknown_parameter"),
        ({"temperature": "1"}, "temperature", "invalid_value"),
        ({"temperature": 2.5}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
        ({"max_tokens": True}, "max_tokens", "invalid_value"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "invalid_value"),
        ({"stream": 1}, "stream", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"resumable": True}, "resumable", "invalid_value"),
        ({"resumable": True, "stream": True, "tools": [TOOL]}, "resumable", "invalid_value"),
        ({"n": 2}, "n", "invalid_value"),
        ({"logprobs": True}, "logprobs", "invalid_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"presence_penalty": 0.5}, "presence_penalty", "invalid_value"),
        ({"logit_bias": {"1": 2}}, "logit_bias", "invalid_value"),
        ({"response_format": {"type": "json_object"}}, "response_format.type", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", "invalid_value"),
        ({"stop": [""]}, "stop.0", "invalid_value"),
        ({"seed": -1}, "seed", "invalid_value"),
    ],
)
def test_a_wrong_field_is_named(change, param, code):
    with pytest.raises(Problem) as caught:
        fields.parse(ChatRequest, CHAT | change)
    assert caught.value.status == 400
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.message.startswith(param.partition(".")[0])


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 1}, "logprobs"),
        ({"messages": [USER]}, "messages"),
    ],
)
def test_a_wrong_field_of_a_completion_is_named(change, param):
    with pytest.raises(Problem) as caught:
        fields.parse(CompletionRequest, TEXT | change)
    assert caught.value.param.partition(".")[0] == param


def test_a_refusal_does_not_quote_what_came():
    with pytest.raises(Problem) as caught:
        fields.parse(ChatRequest, CHAT | {"temperature": "secret words"})
    assert "secret" not in caught.value.message


def test_neutral_values_of_what_is_not_served_are_taken():
    neutral = {
        "n": 1,
        "logprobs": False,
        "top_logprobs": 0,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "store": False,
        "user": "me",
        "metadata": {"a": "b"},
    }
    asked = fields.parse(ChatRequest, CHAT | neutral | {"temperature": None, "stop": None})
    assert asked.sampling(5) == {"max_tokens": 5}


def test_sampling_keeps_the_models_names():
    given = {"temperature": 0, "top_p": 1, "seed": 3, "stop": ["a"], "top_k": 5, "min_tokens": 1, "ignore_eos": True}
    assert fields.parse(ChatRequest, CHAT | given).sampling(7) == {"max_tokens": 7} | given


def test_messages_reach_the_template_as_texts_and_objects():
    messages = [
        {"role": "developer", "content": "be brief", "name": "boss"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
    ]
    asked = fields.parse(ChatRequest, CHAT | {"messages": messages, "tools": [TOOL]})
    function = {"name": "weather", "arguments": {"city": "Rome"}}
    assert asked.template_messages() == [
        {"role": "system", "content": "be brief", "name": "boss"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "", "tool_calls": [CALL | {"function": function}]},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
    ]
    assert asked.wanted_tools() == [TOOL]


def test_tools_that_may_not_be_called_are_not_offered():
    assert fields.parse(ChatRequest, CHAT | {"tools": [TOOL], "tool_choice": "none"}).wanted_tools() == []


@pytest.mark.parametrize("arguments", ["{", "[1]", "1"])
def test_arguments_of_a_call_must_be_an_object(arguments):
    call = CALL | {"function": {"name": "weather", "arguments": arguments}}
    asked = fields.parse(ChatRequest, CHAT | {"messages": [{"role": "assistant", "tool_calls": [call]}]})
    with pytest.raises(Problem, match=r"messages\.tool_calls\.function\.arguments"):
        asked.template_messages()


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("completion_tokens", [None, 7])
@pytest.mark.parametrize("token_ids", [True, False])
def test_an_event_id_comes_back_as_it_went(usage, completion_tokens, token_ids):
    position = EventId(
        kind="chat",
        include_usage=usage,
        return_token_ids=token_ids,
        stream_id="f" * 32,
        frame=12,
        created=1_700_000_000,
        prompt_tokens=5,
        completion_tokens=completion_tokens,
    )
    assert event_id.parse(str(position)) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "chat.x.1.1",
        "chat.x.-1.1.1",
        "chat.x.1.1.1\n",
        "chat.ü.1.1.1",
        "chat..1.1.1",
        "tune.x.1.1.1",
        "chat.x.١.1.1",
    ],
)
def test_what_is_no_event_id_is_refused(text):
    with pytest.raises(Problem) as caught:
        event_id.parse(text)
    assert (caught.value.status, caught.value.param) == (400, "Last-Event-ID")
