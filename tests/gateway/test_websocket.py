"""``/v1/stream`` over a real socket, against a scripted Triton: answers, acks and controls."""

from __future__ import annotations

import asyncio
import json

import pytest

from client.fake_triton import answer, frame_message, inputs_of, levels_message, run
from gateway.harness import REQUEST_ID, acks, until_acknowledged
from gateway.websocket_client import GENERATE, hear, opened, rest, say, until_closed
from sluiceway.gateway.websocket.protocol import frame_bytes

STREAM_ID = "f" * 32


def test_an_answer():
    async def check():
        async with opened(answer(["a", "ü", ""])) as (fake, connection):
            heard, code = await rest(connection)
            assert code == 1000
            assert heard == [
                {"type": "frame", "frame": 0, "text": "a", "finish_reason": None},
                {"type": "frame", "frame": 1, "text": "ü", "finish_reason": None},
                {
                    "type": "frame",
                    "frame": 2,
                    "text": "",
                    "finish_reason": "stop",
                    "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
                },
            ]
            assert fake.opened[0]["text_input"] == "hi"
            assert fake.metadata[0]["x-request-id"] == REQUEST_ID

    run(check())


def test_messages_go_through_the_template_and_sampling_to_the_model():
    first = {
        "type": "generate",
        "model": "llm",
        "messages": [{"role": "user", "content": "hi"}],
        "max_completion_tokens": 3,
        "seed": 7,
        "return_token_ids": True,
    }

    async def check():
        async with opened(answer(["a"]), first=first) as (fake, connection):
            (frame,), _ = await rest(connection)
            assert frame["token_ids"] == [0]
            assert fake.opened[0]["text_input"] == "user:hi;"
            assert json.loads(fake.opened[0]["sampling_parameters"]) == {"max_tokens": 3, "seed": 7}

    run(check())


def test_without_acks_frames_are_taken_once_their_bytes_are_out():
    seen = []

    async def check():
        async with opened(until_acknowledged(2, seen)) as (_, connection):
            texts = [await connection.recv() for _ in range(3)]
            ends = [frame_bytes(len(texts[0])), sum(frame_bytes(len(text)) for text in texts[:2])]
            assert seen[-1] == (1, ends[1])
            assert all(body_bytes == ends[frame] for frame, body_bytes in seen)

    run(check())


def test_frame_bytes_are_those_of_the_wire():
    async def check():
        async with opened(answer(["x" * size for size in (0, 125, 126, 65_400, 70_000)])) as (_, connection):
            counted = 0
            received = 0
            protocol = connection.protocol
            feed = protocol.receive_data

            def counting(data):
                nonlocal received
                received += len(data)
                feed(data)

            protocol.receive_data = counting
            async for text in until_closed(connection):
                counted += frame_bytes(len(text.encode()))
            close_frame = 4
            assert received == counted + close_frame

    run(check())


def test_pongs_count_as_bytes_of_the_body():
    seen = []

    async def script(requests, call):
        await call.write(frame_message(0, "x"))
        seen.extend(await acks(requests, 0))
        await asyncio.wait_for(ponged.wait(), 5)
        await call.write(frame_message(1, "x"))
        seen.extend(await acks(requests, 1))
        await call.write(frame_message(2, "", "stop"))

    ponged = asyncio.Event()

    async def check():
        async with opened(script) as (_, connection):
            first = frame_bytes(len(await connection.recv()))
            await (await connection.ping(b"1234"))
            ponged.set()
            second = frame_bytes(len(await connection.recv()))
            await rest(connection)
            assert seen == [(0, first), (1, first + 6 + second)]

    run(check())


def test_with_acks_the_client_says_what_it_consumed():
    told = asyncio.Queue()

    async def script(requests, call):
        for sequence in range(4):
            await call.write(frame_message(sequence, "x"))
        for until in (1, 3):
            told.put_nowait(await acks(requests, until))
        await call.write(frame_message(4, "", "stop"))

    async def check():
        async with opened(script, first=GENERATE | {"acks": True}) as (_, connection):
            for _ in range(4):
                await hear(connection)
            await asyncio.sleep(0.2)
            assert told.empty()
            await say(connection, {"type": "ack", "frame": 1})
            assert await told.get() == [(1, None)]
            await say(connection, {"type": "ack", "frame": 1})
            await say(connection, {"type": "ack", "frame": 3})
            assert (await told.get())[-1] == (3, None)
            assert (await rest(connection))[1] == 1000

    run(check())


@pytest.mark.parametrize(
    ("wrong", "param", "code"),
    [
        ({"type": "ack", "frame": 2}, "frame", "frame_unknown"),
        ({"type": "ack", "frame": 0}, "frame", "invalid_value"),
        ({"type": "ack", "frame": -1}, "frame", "invalid_value"),
        ({"type": "ack", "frame": True}, "frame", "invalid_value"),
        ({"type": "ack"}, "frame", "missing_required_parameter"),
        ({"type": "ack", "frame": 1, "more": 1}, "more", "unknown_parameter"),
        ({"type": "generate", "prompt": "x"}, "type", "invalid_value"),
        ({"type": ["pause"]}, "type", "invalid_value"),
        ([], None, "invalid_body"),
        ("{", None, "invalid_json"),
    ],
)
def test_a_wrong_control_is_refused_and_the_answer_goes_on(wrong, param, code):
    async def check():
        async with opened(_two_then_wait, first=GENERATE | {"acks": True}) as (_, connection):
            assert [(await hear(connection))["frame"] for _ in range(2)] == [0, 1]
            await say(connection, {"type": "ack", "frame": 1})
            await say(connection, wrong)
            error = await hear(connection)
            assert error["type"] == "error"
            assert error["error"]["param"] == param
            assert error["error"]["code"] == code
            await say(connection, {"type": "cancel"})
            assert (await hear(connection))["finish_reason"] == "cancelled"

    run(check())


async def _two_then_wait(requests, call):
    """Two frames, and the end once it is cancelled."""
    for sequence in range(2):
        await call.write(frame_message(sequence, "x"))
    while "cancel" not in inputs_of(await requests.get()):
        pass
    await call.write(frame_message(2, "", "cancelled"))


def test_an_ack_without_acks_is_refused():
    async def check():
        async with opened(_two_then_wait) as (_, connection):
            assert [(await hear(connection))["frame"] for _ in range(2)] == [0, 1]
            await say(connection, {"type": "ack", "frame": 1})
            assert "opened without acks" in (await hear(connection))["error"]["message"]

    run(check())


def test_pause_holds_frames_back_and_resume_lets_them_come():
    async def script(requests, call):
        await call.write(frame_message(0, "x"))
        await paused.wait()
        await call.write(frame_message(1, "x", "stop"))

    paused = asyncio.Event()

    async def check():
        async with opened(script, heartbeat_s=0.1) as (_, connection):
            assert (await hear(connection))["frame"] == 0
            await say(connection, {"type": "pause"})
            assert (await hear(connection)) == {"type": "heartbeat"}
            paused.set()
            assert [await hear(connection) for _ in range(3)] == [{"type": "heartbeat"}] * 3
            await say(connection, {"type": "resume"})
            assert (await hear(connection))["frame"] == 1

    run(check())


def test_cancel_ends_a_paused_answer():
    async def check():
        async with opened(_two_then_wait) as (_, connection):
            await hear(connection)
            await say(connection, {"type": "pause"})
            await say(connection, {"type": "cancel"})
            heard, code = await rest(connection)
            assert heard[-1]["finish_reason"] == "cancelled"
            assert code == 1000

    run(check())


def test_levels():
    async def script(requests, call):
        await call.write(frame_message(0, "x"))
        while "levels" not in inputs_of(await requests.get()):
            pass
        await call.write(levels_message('{"sent": 1}'))
        await call.write(frame_message(1, "", "stop"))

    async def check():
        async with opened(script) as (_, connection):
            await hear(connection)
            await say(connection, {"type": "levels"})
            heard, _ = await rest(connection)
            assert {"type": "levels", "levels": {"sent": 1}} in heard

    run(check())


def test_a_resumable_answer_names_itself_and_is_taken_up_again():
    async def check():
        scripts = answer(["a", "b"], stream_id=STREAM_ID), answer(["c", "d"], first=2)
        async with opened(*scripts, first=GENERATE | {"resumable": True}) as (fake, connection):
            assert (await hear(connection))["stream_id"] == STREAM_ID
            assert fake.opened[0]["resumable"] is True
        first = {"type": "resume_stream", "stream_id": STREAM_ID, "frame": 2}
        async with opened(answer(["c", "d"], first=2), first=first) as (fake, connection):
            heard, _ = await rest(connection)
            assert [each["frame"] for each in heard] == [2, 3]
            assert heard[-1]["usage"] == {"completion_tokens": 4}
            assert fake.opened[0]["resume_stream_id"] == STREAM_ID
            assert fake.opened[0]["resume_frame"] == 2

    run(check())
