"""OpenAI's API over a real socket, against a scripted Triton."""

from __future__ import annotations

import json

import pytest

from client.fake_triton import answer, error_message, frame_message, run
from gateway.harness import Tokenizer, gateway, leave_unanswered, silence, until_acknowledged

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
STREAM_ID = "f" * 32
USER = {"role": "user", "content": "hi"}
ASK_CHAT = {"model": "llm", "messages": [USER]}
ASK_TEXT = {"model": "llm", "prompt": "hi"}
TOOL = {"type": "function", "function": {"name": "weather"}}
CALL_TEXT = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


def serving(*scripts, **changes):
    return gateway(*scripts, tokenizer=Tokenizer(), **changes)


def blocks(text):
    """The events of a stream, each a dict of its fields."""
    lines = (block.split("\n") for block in text.split("\n\n") if block and not block.startswith(":"))
    return [dict(line.split(": ", 1) for line in block) for block in lines]


def chunks(text):
    return [json.loads(block["data"]) for block in blocks(text) if block["data"] != "[DONE]"]


def test_a_streamed_chat():
    async def check():
        async with serving(answer(["a", "ü", ""])) as (fake, client):
            response = await client.post(CHAT, json={**ASK_CHAT, "stream": True, "seed": 7})
            assert response.status_code == 200
            assert [block.get("id") for block in blocks(response.text)] == ["0", "1", "2", None]
            assert response.text.endswith("data: [DONE]\n\n")
            first, second, last = chunks(response.text)
            assert first["id"].startswith("chatcmpl-")
            assert first["id"] == last["id"]
            assert first["object"] == "chat.completion.chunk"
            assert first["model"] == "llm"
            base = {"index": 0, "logprobs": None}
            assert first["choices"] == [base | {"delta": {"role": "assistant", "content": "a"}, "finish_reason": None}]
            assert second["choices"] == [base | {"delta": {"content": "ü"}, "finish_reason": None}]
            assert last["choices"] == [base | {"delta": {}, "finish_reason": "stop"}]
            assert "usage" not in first
            asked = fake.opened[0]
            assert asked["text_input"] == "user:hi;"
            assert json.loads(asked["sampling_parameters"])["seed"] == 7

    run(check())


@pytest.mark.parametrize(("path", "ask"), [(CHAT, ASK_CHAT), (TEXT, ASK_TEXT)])
def test_token_ids_come_with_what_they_are_for(path, ask):
    async def check():
        async with serving(answer(["a", "b", ""], stream_id=STREAM_ID), answer(["a", "b"])) as (_, client):
            body = {**ask, "return_token_ids": True}
            response = await client.post(path, json={**body, "stream": True, "resumable": True})
            assert [chunk["choices"][0]["token_ids"] for chunk in chunks(response.text)] == [[0], [1], [2]]
            whole = (await client.post(path, json=body)).json()
            assert whole["choices"][0]["token_ids"] == [0, 1]
            assert whole["usage"]["completion_tokens"] == 2
        last = blocks(response.text)[0]["id"]
        async with serving(answer(["b", ""], first=1)) as (_, client):
            resumed = await client.get(f"/v1/streams/{STREAM_ID}", params={"last_event_id": last})
            assert [chunk["choices"][0]["token_ids"] for chunk in chunks(resumed.text)] == [[1], [2]]

    run(check())


def test_a_streamed_completion_with_usage():
    async def check():
        async with serving(answer(["a", "b"], reason="length")) as (fake, client):
            body = {**ASK_TEXT, "stream": True, "stream_options": {"include_usage": True}}
            first, last, usage = chunks((await client.post(TEXT, json=body)).text)
            assert first["object"] == "text_completion"
            assert first["usage"] is None
            assert [first["choices"][0]["text"], last["choices"][0]["text"]] == ["a", "b"]
            assert last["choices"][0]["finish_reason"] == "length"
            assert usage["choices"] == []
            assert usage["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
            assert json.loads(fake.opened[0]["sampling_parameters"]) == {"max_tokens": 16}

    run(check())


def test_whole_answers():
    async def check():
        async with serving(answer(["a", "b"])) as (_, client):
            chat = (await client.post(CHAT, json=ASK_CHAT)).json()
            text = (await client.post(TEXT, json=ASK_TEXT)).json()
            assert chat["object"] == "chat.completion"
            assert chat["choices"][0]["message"] == {"role": "assistant", "content": "ab", "refusal": None}
            assert chat["choices"][0]["finish_reason"] == "stop"
            assert chat["usage"]["completion_tokens"] == 2
            assert text["object"] == "text_completion"
            assert text["choices"][0]["text"] == "ab"

    run(check())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reason", ["cancelled", "stalled", "quota", "degraded", "shutdown", "error"])
def test_an_answer_that_was_cut_short_says_why(reason, stream):
    async def check():
        async with serving(answer(["a", ""], reason=reason)) as (_, client):
            response = await client.post(CHAT, json={**ASK_CHAT, "stream": stream})
            last = chunks(response.text)[-1] if stream else response.json()
            assert last["choices"][0]["finish_reason"] == reason
            assert response.text.endswith("data: [DONE]\n\n") == stream

    run(check())


def test_frames_are_acknowledged_as_their_events_are_out():
    seen = []

    async def check():
        async with serving(until_acknowledged(2, seen)) as (_, client):
            body = (await client.post(CHAT, json={**ASK_CHAT, "stream": True})).content
            assert seen[-1] == (1, body.index(b"id: 2\n"))

    run(check())


def cut(text, size):
    return [text[start : start + size] for start in range(0, len(text), size)] + [""]


@pytest.mark.parametrize("size", [1, 7, len(CALL_TEXT) + 3])
def test_a_tool_call_however_it_is_cut(size):
    async def check():
        async with serving(answer(cut("so " + CALL_TEXT, size))) as (_, client):
            body = {**ASK_CHAT, "tools": [TOOL]}
            whole = (await client.post(CHAT, json=body)).json()["choices"][0]
            streamed = [
                each["choices"][0] for each in chunks((await client.post(CHAT, json=body | {"stream": True})).text)
            ]
        calls = [call for each in streamed for call in each["delta"].get("tool_calls", [])]
        function = {"name": "weather", "arguments": '{"city": "Rome"}'}
        assert [call["function"] for call in calls] == [function]
        assert calls[0]["index"] == 0
        assert [call["function"] for call in whole["message"]["tool_calls"]] == [function]
        assert "".join(each["delta"].get("content", "") for each in streamed) == whole["message"]["content"] == "so "
        assert whole["finish_reason"] == streamed[-1]["finish_reason"] == "tool_calls"

    run(check())


def test_without_tools_in_the_request_the_same_text_is_text():
    async def check():
        async with serving(answer([CALL_TEXT])) as (_, client):
            choice = (await client.post(CHAT, json=ASK_CHAT)).json()["choices"][0]
            assert choice["message"]["content"] == CALL_TEXT
            assert choice["finish_reason"] == "stop"

    run(check())


async def broken(_requests, call):
    await call.write(frame_message(0, "a"))
    await call.write(error_message("the engine failed"))


def test_an_error_after_the_first_event_is_an_event_and_no_done():
    async def check():
        async with serving(broken) as (_, client):
            text = (await client.post(CHAT, json={**ASK_CHAT, "stream": True})).text
            assert "error" in chunks(text)[-1]
            assert "[DONE]" not in text

    run(check())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("refusal", "param", "code"),
    [
        ("text_input: 9000 tokens in a context of 8192 tokens", "messages", "context_length_exceeded"),
        ("sampling_parameters.stop: too many", "stop", "invalid_value"),
    ],
)
def test_the_models_refusals_have_the_names_of_this_api(refusal, param, code, stream):
    async def refuse(_requests, call):
        await call.write(error_message(refusal))

    async def check():
        async with serving(refuse) as (_, client):
            response = await client.post(CHAT, json={**ASK_CHAT, "stream": stream})
            assert response.status_code == 400
            error = response.json()["error"]
            assert (error["param"], error["code"]) == (param, code)
            assert error["message"].startswith(f"{param}: ")

    run(check())


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (CHAT, {**ASK_CHAT, "model": "gpt-9"}, 404, "model_not_found"),
        (TEXT, {**ASK_TEXT, "model": "gpt-9"}, 404, "model_not_found"),
        (CHAT, {**ASK_CHAT, "temperatur": 1}, 400, "unknown_parameter"),
    ],
)
def test_refused_without_a_call_to_triton(path, body, status, code):
    async def check():
        async with serving(answer([""])) as (fake, client):
            response = await client.post(path, json=body)
            assert (response.status_code, response.json()["error"]["code"]) == (status, code)
            assert fake.opened == []

    run(check())


def test_a_gateway_without_a_tokenizer_says_so():
    async def check():
        async with gateway(answer([""])) as (fake, client):
            for path, body in ((CHAT, ASK_CHAT), (TEXT, ASK_TEXT)):
                response = await client.post(path, json=body)
                assert (response.status_code, response.json()["error"]["code"]) == (501, "not_implemented")
            assert fake.opened == []

    run(check())


def test_models():
    async def check():
        async with serving(answer([""]), served_model_name="smol/135m") as (_, client):
            listed = (await client.get("/v1/models")).json()
            assert [each["id"] for each in listed["data"]] == ["smol/135m"]
            assert (await client.get("/v1/models/smol/135m")).json() == listed["data"][0]
            assert (await client.get("/v1/models/other")).status_code == 404

    run(check())


ASK_RESUMABLE = {**ASK_CHAT, "stream": True, "resumable": True, "stream_options": {"include_usage": True}}


def resumed_by_header(client, last):
    return client.get(f"/v1/streams/{STREAM_ID}", headers={"last-event-id": last})


def resumed_by_query(client, last):
    return client.get(f"/v1/streams/{STREAM_ID}", params={"last_event_id": last})


def resumed_by_post(client, last):
    return client.post(CHAT, json=ASK_RESUMABLE, headers={"last-event-id": last})


@pytest.mark.parametrize("resume", [resumed_by_header, resumed_by_query, resumed_by_post])
def test_a_broken_stream_goes_on_after_the_last_event(resume):
    async def breaks(_requests, call):
        await call.write(frame_message(0, "a", stream_id=STREAM_ID))
        await call.write(frame_message(1, "b", stream_id=STREAM_ID))
        await call.write(error_message("UNAVAILABLE: unavailable: gone"))

    async def check():
        async with serving(breaks, answer(["c", ""], first=2, stream_id=STREAM_ID)) as (fake, client):
            before = (await client.post(CHAT, json=ASK_RESUMABLE)).text
            last = blocks(before)[1]["id"]
            after = (await resume(client, last)).text
            asked = fake.opened[1]
            assert (asked["resume_stream_id"], asked["resume_frame"]) == (STREAM_ID, 2)
            assert "text_input" not in asked
            first, second, *_ = chunks(before)
            third, end, usage = chunks(after)
            assert {each["id"] for each in (first, second, third, end, usage)} == {f"chatcmpl-{STREAM_ID}"}
            assert len({each["created"] for each in (first, third, usage)}) == 1
            text = "".join(each["choices"][0]["delta"].get("content", "") for each in (first, second, third, end))
            assert text == "abc"
            assert "role" not in third["choices"][0]["delta"]
            assert usage["usage"] == {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}
            assert after.endswith("data: [DONE]\n\n")

    run(check())


def test_whoever_lacks_only_the_end_gets_it_without_triton():
    async def check():
        async with serving(answer(["a", "b"], stream_id=STREAM_ID)) as (fake, client):
            whole = (await client.post(CHAT, json=ASK_RESUMABLE)).text
            last = blocks(whole)[1]["id"]
            rest = (await resumed_by_header(client, last)).text
            assert [block["data"] for block in blocks(rest)] == [block["data"] for block in blocks(whole)[2:]]
            assert len(fake.opened) == 1

    run(check())


@pytest.mark.parametrize(
    "last", ["", "7", "chat.x.1.1", f"chat.{'e' * 32}.1.1.1", f"chat.{STREAM_ID}.-1.1.1", f"chat.{STREAM_ID}.1.1.1\t2"]
)
def test_an_id_that_is_none_is_refused(last):
    async def check():
        async with serving(answer([""])) as (fake, client):
            for response in (await resumed_by_header(client, last), await resumed_by_query(client, last)):
                assert response.status_code == 400
                assert response.json()["error"]["param"] == "Last-Event-ID"
            assert fake.opened == []

    run(check())


@pytest.mark.parametrize(
    ("error", "status"),
    [("stream_unknown: none", 404), ("stream_foreign: not yours", 404), ("frame_expired: gone", 410)],
)
def test_a_stream_that_is_gone(error, status):
    async def gone(_requests, call):
        await call.write(error_message(error))

    async def check():
        async with serving(gone) as (_, client):
            response = await resumed_by_header(client, f"chat.{STREAM_ID}.1.1.1")
            assert response.status_code == status
            assert "foreign" not in response.text

    run(check())


def test_a_detached_client_is_told_to_come_back():
    async def script(_requests, call):
        await call.write(frame_message(0, "a", stream_id=STREAM_ID))
        await call.write(frame_message(1, "", "detached", stream_id=STREAM_ID))

    async def check():
        async with serving(script) as (_, client):
            text = (await client.post(CHAT, json=ASK_RESUMABLE)).text
            assert chunks(text)[-1]["error"]["code"] == "detached"
            assert "[DONE]" not in text

    run(check())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_before_the_first_token_ends_the_rpc(stream):
    async def check():
        async with serving(silence) as (fake, client):
            await leave_unanswered(fake, client, CHAT, ASK_CHAT | {"stream": stream})

    run(check())
