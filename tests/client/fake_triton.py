"""ModelStreamInfer over a real socket, answering from a script. For the client's logic only."""

from __future__ import annotations

import asyncio
import contextlib
import struct

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

TIMEOUT_S = 20


def text_bytes(text):
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def frame_message(sequence, text, finish_reason="", stream_id=""):
    response = service_pb2.ModelInferResponse(model_name="llm")
    outputs = {
        "text_output": text_bytes(text),
        "token_ids": struct.pack("<i", sequence),
        "frame": struct.pack("<2q", sequence, sequence),
        "finish_reason": text_bytes(finish_reason),
    }
    if stream_id:
        outputs["stream_id"] = text_bytes(stream_id)
    for name, raw in outputs.items():
        response.outputs.add(name=name)
        response.raw_output_contents.append(raw)
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def levels_message(text):
    response = service_pb2.ModelInferResponse(model_name="llm")
    response.outputs.add(name="levels")
    response.raw_output_contents.append(text_bytes(text))
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def error_message(text):
    return service_pb2.ModelStreamInferResponse(error_message=text)


def inputs_of(message):
    """Name to what it holds."""
    values = {}
    for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True):
        match tensor.datatype:
            case "BYTES":
                values[tensor.name] = raw[4:].decode()
            case "INT64":
                values[tensor.name] = struct.unpack("<q", raw)[0]
            case "BOOL":
                values[tensor.name] = raw == b"\x01"
    return values


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """scripts: one for each RPC, ``async def script(requests, call)``; the last one for all that follow.

    requests: an asyncio.Queue of what the client sent; None: it sends no more. call: ``write`` and ``abort``.
    """

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.opened = []
        self.metadata = []
        self.was_cancelled = asyncio.Event()

    async def ModelStreamInfer(self, request_iterator, context):
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        self.metadata.append(dict(context.invocation_metadata()))
        requests = asyncio.Queue()

        async def take():
            async for message in request_iterator:
                await requests.put(message)
            await requests.put(None)

        taking = asyncio.create_task(take())
        try:
            self.opened.append(inputs_of(await requests.get()))
            await script(requests, context)
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise
        finally:
            taking.cancel()


@contextlib.asynccontextmanager
async def serving(*scripts):
    """Yields the fake and its address."""
    server = grpc.aio.server()
    fake = FakeTriton(*scripts)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield fake, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def run(coroutine):
    """Leaves no task of ours behind."""

    async def alone():
        async with asyncio.timeout(TIMEOUT_S):
            await coroutine
        await asyncio.sleep(0.01)
        ours = [task for task in asyncio.all_tasks() if "sluiceway" in repr(task.get_coro())]
        assert ours == []

    asyncio.run(alone())


def answer(texts, first=0, reason="stop", stream_id=""):
    async def script(_requests, call):
        for sequence, text in enumerate(texts, first):
            is_last = sequence == first + len(texts) - 1
            await call.write(frame_message(sequence, text, reason if is_last else "", stream_id))

    return script
