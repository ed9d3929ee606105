"""The client against a scripted server on a real socket."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from client.fake_triton import TIMEOUT_S, answer, error_message, frame_message, inputs_of, levels_message, run, serving
from sluiceway.client import AsyncClient, Client, GenerateRequest, GenerationError
from sluiceway.client.rpc import AsyncRpc

STREAM_ID = "0123456789abcdef0123456789abcdef"


def test_an_answer_is_asked_for_with_acks_and_read_to_its_reason():
    async def check():
        async with serving(answer(["a", "b", "c"])) as (fake, address), AsyncClient(address) as client:
            async with client.generate("river", sampling={"max_tokens": 3}, resumable=False) as generation:
                frames = [frame async for frame in generation]
            assert [(frame.sequence, frame.text, frame.finish_reason) for frame in frames] == [
                (0, "a", None),
                (1, "b", None),
                (2, "c", "stop"),
            ]
            assert frames[1].token_ids == (1,)
            assert fake.opened[0]["acks"]
            assert fake.opened[0]["stream"]
            assert fake.opened[0]["sampling_parameters"] == '{"max_tokens": 3}'
            assert "resumable" not in fake.opened[0]

    run(check())


def test_frames_are_acknowledged_once_the_program_read_them():
    acks = []

    async def script(requests, call):
        for sequence in range(3):
            await call.write(frame_message(sequence, "x"))
        ack = inputs_of(await requests.get())
        acks.append(ack)
        await call.write(frame_message(3, "", "stop"))

    async def check():
        async with serving(script) as (_, address), AsyncClient(address) as client:  # noqa: SIM117
            async with client.generate("river") as generation:
                frames = aiter(generation)
                for _ in range(3):
                    await anext(frames)
                await asyncio.sleep(0.5)
                assert acks == [{"ack_frame": 1}]  # the third is in the program's hands
                assert [frame.finish_reason async for frame in frames] == ["stop"]

    run(check())


def test_the_gateway_acknowledges_bytes_of_its_body_and_names_the_rpc():
    acks = []

    async def script(requests, call):
        await call.write(frame_message(0, "x"))
        acks.append(inputs_of(await requests.get()))
        await call.write(frame_message(1, "", "stop"))

    async def check():
        async with serving(script) as (fake, address), grpc.aio.insecure_channel(address) as channel:
            rpc = AsyncRpc(
                channel, GenerateRequest(prompt="river"), request_id="envoys", metadata=[("traceparent", "t")]
            )
            async for frame in rpc:
                rpc.ack(frame.sequence, 120)
            await rpc.aclose()
            assert acks == [{"ack_frame": 0, "ack_body_bytes": 120}]
            assert fake.metadata[0]["x-request-id"] == "envoys"
            assert fake.metadata[0]["traceparent"] == "t"

    run(check())


def test_levels_answers_before_the_frames_are_read():
    async def script(requests, call):
        for sequence in range(3):
            await call.write(frame_message(sequence, "x"))
        assert inputs_of(await requests.get()) == {"levels": True}
        await call.write(levels_message('{"consumed": {"bytes": 0}}'))
        assert inputs_of(await requests.get()) == {"cancel": True}
        await call.write(frame_message(3, "", "cancelled"))

    async def check():
        async with serving(script) as (_, address), AsyncClient(address) as client:  # noqa: SIM117
            async with client.generate("river") as generation:
                frames = aiter(generation)
                await anext(frames)
                assert await generation.levels() == {"consumed": {"bytes": 0}}
                await generation.cancel()
                assert [frame.finish_reason async for frame in frames] == [None, None, "cancelled"]
                assert await generation.levels() == {}

    run(check())


def test_a_refused_control_request_leaves_the_stream_alone():
    async def script(_requests, call):
        await call.write(error_message("ack_frame: frame 9 was never sent; 0 to 3"))
        await answer(["a", "b"])(_requests, call)

    async def check():
        async with serving(script) as (_, address), AsyncClient(address) as client:
            assert await client.generate("river").text() == "ab"

    run(check())


def test_errors_have_codes():
    async def abort(_requests, call):
        await call.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "quota; try again in 3 s")

    async def refuse(_requests, call):
        await call.write(error_message("max_tokens: must be 1 to 9"))

    async def check():
        for script, code, retry_after_s in ((abort, "resource_exhausted", 3.0), (refuse, "invalid_argument", None)):
            async with serving(script) as (_, address), AsyncClient(address) as client:
                with pytest.raises(GenerationError) as caught:
                    await client.generate("river").text()
                assert (caught.value.code, caught.value.retry_after_s) == (code, retry_after_s)

    run(check())


def test_a_broken_connection_is_resumed_at_the_next_frame():
    async def broken(_requests, call):
        await call.write(frame_message(0, "a", stream_id=STREAM_ID))
        await call.write(frame_message(1, "b"))
        await call.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")

    async def check():
        async with serving(broken, answer(["c", "d"], first=2)) as (fake, address), AsyncClient(address) as client:
            generation = client.generate("river")
            assert await generation.text() == "abcd"
            assert generation.resumed == 1
            assert fake.opened[0]["resumable"]
            assert fake.opened[1]["resume_stream_id"] == STREAM_ID
            assert fake.opened[1]["resume_frame"] == 2
            assert "text_input" not in fake.opened[1]

    run(check())


def test_a_detached_stream_is_taken_up_again():
    detached = answer(["a", ""], reason="detached", stream_id=STREAM_ID)

    async def check():
        async with serving(detached, answer(["b", "c"], first=1)) as (fake, address), AsyncClient(address) as client:
            generation = client.generate("river")
            assert await generation.text() == "abc"
            assert generation.finish_reason == "stop"
            assert fake.opened[1]["resume_frame"] == 1

    run(check())


def test_what_cannot_be_resumed_is_an_error_after_the_time_allowed():
    async def broken(_requests, call):
        await call.write(frame_message(0, "a", stream_id=STREAM_ID))
        await call.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")

    async def down(_requests, call):
        await call.abort(grpc.StatusCode.UNAVAILABLE, "still down")

    async def check():
        async with serving(broken, down) as (_, address), AsyncClient(address, resume_within_s=0.5) as client:
            with pytest.raises(GenerationError, match="still down"):
                await client.generate("river").text()

    run(check())


def test_a_deadline_ends_the_answer():
    async def silent(_requests, _call):
        await asyncio.sleep(TIMEOUT_S)

    async def check():
        async with serving(silent) as (_, address), AsyncClient(address) as client:
            with pytest.raises(GenerationError) as caught:
                await client.generate("river", timeout_s=0.3).text()
            assert caught.value.code == "deadline_exceeded"

    run(check())


def test_closing_ends_the_rpc():
    async def endless(_requests, call):
        await call.write(frame_message(0, "a"))
        await asyncio.sleep(TIMEOUT_S)

    async def check():
        async with serving(endless) as (fake, address), AsyncClient(address) as client:
            async with client.generate("river") as generation:
                async for _ in generation:
                    break
            async with asyncio.timeout(2):
                await fake.was_cancelled.wait()

    run(check())


def test_on_slow_is_called_once_while_the_program_does_not_read():
    told = []

    async def check():
        async with (
            serving(answer(["a", "b", "c"])) as (_, address),
            AsyncClient(address) as client,
            client.generate("river", on_slow=told.append, slow_after_s=0.1) as generation,
        ):
            frames = aiter(generation)
            await anext(frames)
            await asyncio.sleep(0.6)
            assert [slow.unread_frames for slow in told] == [2]
            assert told[0].unread_s >= 0.1
            assert [frame.text async for frame in frames] == ["b", "c"]

    run(check())


def test_the_synchronous_client_reads_the_same():
    loop = asyncio.new_event_loop()

    async def check():
        async with serving(answer(["a", "b", "c"], stream_id=STREAM_ID)) as (_, address):
            await asyncio.to_thread(read, address)

    def read(address):
        with Client(address) as client:
            with client.generate("river") as generation:
                assert [frame.text for frame in generation] == ["a", "b", "c"]
                assert (generation.finish_reason, generation.stream_id) == ("stop", STREAM_ID)
                assert (generation.next_frame, generation.resumed, generation.levels()) == (3, 0, {})
            assert client.resume(STREAM_ID, 0).text() == "abc"

    try:
        loop.run_until_complete(check())
    finally:
        loop.close()
