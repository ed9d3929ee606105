"""HTTP/1.1 on one socket, as bytes in and out: an event stream, or a WebSocket."""

from __future__ import annotations

import json
from typing import Any, Protocol

import httptools
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from sluiceway.cli.bench.readers.dialects import Dialect, sampling
from sluiceway.cli.bench.readers.wire import Message, StreamRequest, request_id

WEBSOCKET_PATH = "/v1/stream"


class Conversation(Protocol):
    """headers: of the response, once they came. is_asked: whatever is read from now on is the answer.

    is_complete: nothing more belongs to the answer.
    """

    headers: dict[str, str]
    is_asked: bool
    is_complete: bool

    def feed(self, data: bytes) -> list[Message]: ...

    def outgoing(self) -> bytes:
        """What is to be sent now: the request at first, then answers to what was fed."""


class EventConversation:
    """POST, and a body in chunks."""

    def __init__(self, dialect: Dialect, request: StreamRequest, host: str) -> None:
        self.headers: dict[str, str] = {}
        self.is_asked = True
        self.is_complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._decoder = dialect.decoder()
        self._messages: list[Message] = []
        body = dialect.body(request)
        named = [("host", host), ("content-length", str(len(body))), *dialect.headers, *request_id(request)]
        head = "".join(f"{name}: {value}\r\n" for name, value in named)
        self._outgoing = f"POST {dialect.path} HTTP/1.1\r\n{head}\r\n".encode() + body

    def feed(self, data: bytes) -> list[Message]:
        self._parser.feed_data(data)
        messages, self._messages = self._messages, []
        return messages

    def outgoing(self) -> bytes:
        data, self._outgoing = self._outgoing, b""
        return data

    # --- httptools ---

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.headers[":status"] = str(self._parser.get_status_code())

    def on_body(self, data: bytes) -> None:
        if self.headers[":status"] == "200":
            self._messages += self._decoder.feed(data)

    def on_message_complete(self) -> None:
        self.is_complete = True


class WebSocketConversation:
    """``generate``, then frames; acks: each frame is acknowledged as it is read."""

    def __init__(self, request: StreamRequest, host: str, *, acks: bool) -> None:
        self.headers: dict[str, str] = {}
        self.is_asked = self.is_complete = False
        self._request = request
        self._acks = acks
        self._tokens = 0
        self._protocol = ClientProtocol(parse_uri(f"ws://{host}{WEBSOCKET_PATH}"), max_size=None)
        opening = self._protocol.connect()
        for name, value in request_id(request):
            opening.headers[name] = value
        self._protocol.send_request(opening)

    def feed(self, data: bytes) -> list[Message]:
        self._protocol.receive_data(data)
        messages = []
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._opened(event)
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                message = self._message(json.loads(bytes(event.data)))
                messages += [message] if message else []
        if self._acks and messages and messages[-1].frame and not messages[-1].finish_reason:
            self._say({"type": "ack", "frame": messages[-1].frame[0]})
        return messages

    def outgoing(self) -> bytes:
        return b"".join(self._protocol.data_to_send())

    def _opened(self, response: Response) -> None:
        # 101 is this protocol's 200.
        status = "200" if response.status_code == 101 else str(response.status_code)
        self.headers = {name.lower(): value for name, value in response.headers.raw_items()} | {":status": status}
        self.is_asked = True
        if status == "200":
            value = {"type": "generate", "prompt": self._request.prompt, "acks": self._acks, "return_token_ids": True}
            self._say(value | sampling(self._request))
        else:
            self.is_complete = True

    def _message(self, value: dict[str, Any]) -> Message | None:
        if value["type"] == "error":
            return Message(error=value["error"]["message"])
        if value["type"] != "frame":
            return None
        token_ids = tuple(value["token_ids"])
        frame = (value["frame"], self._tokens)
        self._tokens += len(token_ids)
        self.is_complete = value["finish_reason"] is not None
        return Message(text=value["text"], token_ids=token_ids, frame=frame, finish_reason=value["finish_reason"] or "")

    def _say(self, value: dict[str, Any]) -> None:
        self._protocol.send_text(json.dumps(value).encode())
