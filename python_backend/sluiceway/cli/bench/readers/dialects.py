"""What a client says over HTTP to get an answer, and how it reads one: gRPC, or events of two APIs."""

from __future__ import annotations

import json
from typing import Any, Protocol

from sluiceway.cli.bench.readers.wire import PATH, Message, MessageAssembler, StreamRequest, decode


class Decoder(Protocol):
    """Cuts a response's body into messages."""

    def feed(self, data: bytes) -> list[Message]: ...


class Dialect(Protocol):
    """path and headers: of a POST."""

    path: str
    headers: tuple[tuple[str, str], ...]

    def body(self, request: StreamRequest) -> bytes: ...
    def decoder(self) -> Decoder: ...


class Grpc:
    """ModelStreamInfer; the answer needs HTTP/2, for its status is in the trailers."""

    path = PATH
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/grpc"), ("te", "trailers"))

    def body(self, request: StreamRequest) -> bytes:
        return request.body()

    def decoder(self) -> Decoder:
        return _GrpcDecoder()


class GenerateStream:
    """Triton's generate_stream."""

    path = "/v2/models/llm/generate_stream"
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)

    def body(self, request: StreamRequest) -> bytes:
        details = dict.fromkeys(("return_token_ids", "return_frame", "return_finish_reason"), request.details)
        value = {"text_input": request.prompt, "stream": True, **details, "parameters": sampling(request)}
        return json.dumps(value).encode()

    def decoder(self) -> Decoder:
        return _EventDecoder(_of_generate_stream)


class Completions:
    """OpenAI's text completions."""

    path = "/v1/completions"
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)

    def body(self, request: StreamRequest) -> bytes:
        value = {"model": "llm", "prompt": request.prompt, "stream": True, "return_token_ids": True}
        return json.dumps(value | sampling(request)).encode()

    def decoder(self) -> Decoder:
        return _EventDecoder(_Chunks())


def sampling(request: StreamRequest) -> dict[str, Any]:
    return {"max_tokens": request.max_tokens, **request.sampling}


class _GrpcDecoder:
    def __init__(self) -> None:
        self._assembler = MessageAssembler()

    def feed(self, data: bytes) -> list[Message]:
        return [decode(raw) for raw in self._assembler.feed(data)]


class _Read(Protocol):
    """What one event's data says; None: nothing about the answer."""

    def __call__(self, value: dict[str, Any]) -> Message: ...


class _EventDecoder:
    """Server-sent events with one data line, as ours all have."""

    def __init__(self, read: _Read) -> None:
        self._read = read
        self._pending = b""

    def feed(self, data: bytes) -> list[Message]:
        *blocks, self._pending = (self._pending + data).split(b"\n\n")
        lines = (line for block in blocks for line in block.split(b"\n") if line.startswith(b"data: "))
        return [self._message(line[6:]) for line in lines if line != b"data: [DONE]"]

    def _message(self, data: bytes) -> Message:
        value = json.loads(data)
        if "error" in value:
            error = value["error"]
            return Message(error=error if isinstance(error, str) else error["message"])
        return self._read(value)


def _of_generate_stream(value: dict[str, Any]) -> Message:
    sequence, first = value.get("frame", (None, None))
    token_ids = value.get("token_ids", ())
    return Message(
        text=value["text_output"],
        # Triton's own frontend writes a list of one as its element.
        token_ids=(token_ids,) if isinstance(token_ids, int) else tuple(token_ids),
        frame=None if sequence is None else (sequence, first),
        finish_reason=value.get("finish_reason", ""),
    )


class _Chunks:
    """A chunk says neither its number nor its first token's: they follow from the order."""

    def __init__(self) -> None:
        self._frames = self._tokens = 0

    def __call__(self, value: dict[str, Any]) -> Message:
        (choice,) = value["choices"]
        frame = (self._frames, self._tokens)
        token_ids = tuple(choice["token_ids"])
        self._frames += 1
        self._tokens += len(token_ids)
        return Message(
            text=choice["text"], token_ids=token_ids, frame=frame, finish_reason=choice["finish_reason"] or ""
        )
