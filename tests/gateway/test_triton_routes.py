"""Triton's generate and generate_stream over a real socket, against a scripted Triton."""

from __future__ import annotations

import asyncio
import json

import pytest

from client.fake_triton import answer, error_message, frame_message, inputs_of, run
from gateway.harness import REQUEST_ID, gateway, leave_unanswered, raw, silence, until_acknowledged

STREAM = "/v2/models/llm/generate_stream"
WHOLE = "/v2/models/llm/generate"
ASK = {"text_input": "river", "stream": True}


def events(text):
    """Of an event stream whose data are single lines."""
    return [json.loads(block.removeprefix("data: ")) for block in text.split("\n\n") if block.startswith("data: ")]


def test_each_frame_is_one_event():
    async def check():
        async with gateway(answer(["a", "ü\n", ""])) as (fake, client):
            response = await client.post(STREAM, json={**ASK, "parameters": {"max_tokens": 3}, "id": "mine"})
            assert response.status_code == 200
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert response.headers["cache-control"] == "no-store"
            assert response.headers["x-accel-buffering"] == "no"
            assert "content-encoding" not in response.headers
            base = {"id": "mine", "model_name": "llm", "model_version": "1"}
            assert events(response.text) == [base | {"text_output": text} for text in ("a", "ü\n", "")]
            asked = fake.opened[0]
            assert asked["sampling_parameters"] == '{"max_tokens": 3}'
            assert asked["acks"]
            assert fake.metadata[0]["x-request-id"] == REQUEST_ID

    run(check())


def test_outputs_that_are_asked_for_are_there():
    async def check():
        async with gateway(answer(["a", "b"], stream_id="f" * 32)) as (_, client):
            flags = {"return_token_ids": True, "return_frame": True, "return_finish_reason": True, "resumable": True}
            response = await client.post(STREAM, json=ASK | flags)
            first, last = events(response.text)
            assert first == {
                "model_name": "llm",
                "model_version": "1",
                "text_output": "a",
                "token_ids": [0],
                "frame": [0, 0],
                "finish_reason": "",
                "stream_id": "f" * 32,
            }
            assert last["finish_reason"] == "stop"

    run(check())


def test_a_whole_answer_is_one_object():
    async def check():
        async with gateway(answer(["a", "b", "c"])) as (_, client):
            response = await client.post(WHOLE, content=json.dumps({"text_input": "river "}))
            assert response.json() == {"model_name": "llm", "model_version": "1", "text_output": "river abc"}
            quiet = await client.post(WHOLE, json={"text_input": "river", "exclude_input_in_output": True})
            assert quiet.json()["text_output"] == "abc"

    run(check())


def test_frames_are_acknowledged_with_the_body_byte_that_must_be_out():
    seen = []

    async def check():
        async with gateway(until_acknowledged(3, seen)) as (_, client):
            body = (await client.post(STREAM, json=ASK)).content
            size_of_three = body.index(b"data", body.rindex(b'"x"'))
            assert seen[-1] == (2, size_of_three)
            assert all(body[:bytes_].endswith(b"\n\n") for _, bytes_ in seen)

    run(check())


def test_without_our_envoy_frames_are_acknowledged_alone_and_the_id_is_our_own():
    seen = []

    async def check():
        async with gateway(until_acknowledged(1, seen), delivery="transport") as (fake, client):
            await client.post(STREAM, json=ASK)
            assert seen == [(0, None)]
            assert fake.metadata[0]["x-request-id"] != REQUEST_ID

    run(check())


@pytest.mark.parametrize("path", [STREAM, WHOLE])
def test_a_client_that_leaves_before_the_first_token_ends_the_rpc(path):
    async def check():
        async with gateway(silence) as (fake, client):
            await leave_unanswered(fake, client, path, {"text_input": "river", "stream": path == STREAM})

    run(check())


def test_heartbeats_come_before_the_first_token():
    async def script(_requests, call):
        await asyncio.sleep(0.5)
        await call.write(frame_message(0, "a", "stop"))

    async def check():
        async with gateway(script, heartbeat_s=0.1) as (_, client):
            text = (await client.post(STREAM, json=ASK)).text
            before, _, after = text.partition("data: ")
            assert before.count(": heartbeat\n\n") >= 2  # 4 on a machine that does nothing else
            assert "heartbeat" not in after

    run(check())


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "must be a JSON object"),
        (b'{"text_input": "a", "text_input": "b"}', 400, "twice"),
        (b'{"text_input": NaN}', 400, "NaN"),
        (b'{"text_input": "\\ud800"}', 400, "surrogate"),
        (b'{"text_input": "\xff"}', 400, "UTF-8"),
        (b'{"text_input": ' + b"[" * 100_000, 400, "nesting"),
        (b"{}", 400, "text_input: missing"),
        (b'{"text_input": 1}', 400, "text_input: must be a string"),
        (b'{"text_input": "a", "stream": 1}', 400, "stream: must be true or false"),
        (b'{"text_input": "a", "parameters": []}', 400, "parameters: must be an object"),
        (b'{"text_input": "a", "stream": true, "parameters": {"stream": true}}', 400, "given twice"),
        (b'{"text_input": "a", "resume_frame": 3}', 400, "only together"),
        (b'{"text_input": "a", "id": 3}', 400, "id: must be"),
        (b'{"text_input": "' + b"a" * 20_000 + b'"}', 413, "at most 16384 bytes"),
    ],
)
def test_bad_bodies_are_refused_with_tritons_error_object(body, status, named):
    async def check():
        async with gateway(silence, max_body_bytes=16_384 if status == 413 else 2**20) as (fake, client):
            for path in (STREAM, WHOLE):
                response = await client.post(path, content=body)
                assert response.status_code == status
                assert named in response.json()["error"]
                assert response.headers["cache-control"] == "no-store"
            assert fake.opened == []

    run(check())


@pytest.mark.parametrize(
    ("message", "status", "retry_after"),
    [
        ("sampling_parameters.max_tokens: must be at most 8", 400, None),
        ("16 streams are open, the limit; try again in 2.5 s", 503, "3"),
        ("Request for unknown model: 'llm' is not found", 404, None),
    ],
)
def test_what_the_backend_refuses_has_its_status_and_text(message, status, retry_after):
    async def script(_requests, call):
        await call.write(error_message(message))

    async def check():
        async with gateway(script) as (_, client):
            for path in (STREAM, WHOLE):
                response = await client.post(path, json={"text_input": "river", "stream": path == STREAM})
                assert (response.status_code, response.json()) == (status, {"error": message})
                assert response.headers.get("retry-after") == retry_after

    run(check())


def test_an_error_after_the_first_frame_is_an_event():
    async def script(_requests, call):
        await call.write(frame_message(0, "a"))
        await call.write(error_message("the engine failed"))

    async def check():
        async with gateway(script) as (_, client):
            response = await client.post(STREAM, json=ASK)
            assert response.status_code == 200
            assert events(response.text)[-1] == {"error": "the engine failed"}

    run(check())


@pytest.mark.parametrize("path", ["/v2/models/other/generate", "/v2/models/llm/versions/2/generate"])
def test_an_unknown_model_is_404(path):
    async def check():
        async with gateway(silence) as (_, client):
            response = await client.post(path, json=ASK)
            assert response.status_code == 404
            assert "unknown model" in response.json()["error"]

    run(check())


def test_a_slow_body_is_given_up_with_408():
    async def check():
        async with gateway(silence, request_timeout_s=0.2) as (fake, client):
            said = await raw(client.port, b"POST " + STREAM.encode() + b" HTTP/1.1\r\ncontent-length: 100\r\n\r\n{")
            assert said.startswith(b"HTTP/1.1 408 ")
            assert b"within 0.2 s" in said
            assert fake.opened == []

    run(check())


def test_more_streams_than_the_process_has_places_are_told_to_come_back():
    async def check():
        async with gateway(silence, max_streams=1, heartbeat_s=0.05) as (fake, client):
            async with client.stream("POST", STREAM, json=ASK) as first:
                await anext(first.aiter_bytes())
                second = await client.post(STREAM, json=ASK)
                assert second.status_code == 503
                assert second.headers["retry-after"] == "1"
                assert "max_streams" in second.json()["error"]
            await fake.was_cancelled.wait()

    run(check())


def test_a_gateway_that_goes_away_ends_its_streams_with_an_error():
    async def check():
        async with gateway(silence, heartbeat_s=0.05) as (fake, client):
            async with client.stream("POST", STREAM, json=ASK) as response:
                await client.upstream.shut_down(0.1)
                text = (await response.aread()).decode()
            assert "shutdown" in events(text)[-1]["error"]
            refused = await client.post(STREAM, json=ASK)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert len(fake.opened) == 1

    run(check())


def test_a_client_that_does_not_read_is_not_acknowledged_for():
    """The small write buffer and the small send buffer fill; acks stop with them."""
    asked = []

    async def script(requests, call):
        for sequence in range(200):
            await call.write(frame_message(sequence, "x" * 900))
        while message := await requests.get():
            asked.append(inputs_of(message)["ack_frame"])

    async def check():
        async with gateway(script, delivery="transport") as (_, client):
            body = json.dumps(ASK).encode()
            sock_reader = asyncio.StreamReader(limit=1024)
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(
                lambda: asyncio.StreamReaderProtocol(sock_reader), "127.0.0.1", client.port
            )
            transport.pause_reading()
            head = f"POST {STREAM} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            transport.write(head + body)
            await asyncio.sleep(1)
            stood_at = asked[-1]
            await asyncio.sleep(0.5)
            assert asked[-1] == stood_at < 199
            transport.resume_reading()
            reading = asyncio.create_task(sock_reader.read(-1))
            while asked[-1] < 199:  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(0.01)
            transport.close()
            await reading

    run(check())
