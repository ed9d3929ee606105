"""What one client saw of one stream."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sluiceway.cli.bench.readers.wire import Message


@dataclass(slots=True)
class Reading:
    """Times are time.monotonic(): comparable with /finished and across processes of one host.

    arrivals, texts, token_counts, frames: one entry a message. token_counts is 1 for a model that does
    not tell its token ids. rpc_id is Envoy's x-request-id. data_bytes counts DATA payload received,
    acknowledged_bytes what was given back to the server's window. left: how the client left, if it did.
    """

    client_id: str
    opened_at: float
    headers_at: float | None = None
    arrivals: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    token_counts: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    frames: list[tuple[int, int]] = field(default_factory=list)
    finish_reason: str = ""
    stream_id: str = ""
    error: str = ""
    grpc_status: int | None = None
    grpc_message: str = ""
    rpc_id: str = ""
    data_bytes: int = 0
    data_frames: int = 0
    acknowledged_bytes: int = 0
    last_data_at: float | None = None
    closed_at: float | None = None
    left: str = ""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def ttft_s(self) -> float | None:
        """From the request's last byte to the first message with a token."""
        for at, tokens in zip(self.arrivals, self.token_counts, strict=True):
            if tokens:
                return at - self.opened_at
        return None

    def gaps_s(self) -> list[float]:
        """Time between neighbouring messages that carry tokens: what a person sees as a stall."""
        times = [at for at, n in zip(self.arrivals, self.token_counts, strict=True) if n]
        return [b - a for a, b in itertools.pairwise(times)]

    def tpot_s(self) -> float | None:
        """Mean time per output token after the first message."""
        tokens = sum(self.token_counts)
        if len(self.arrivals) < 2 or tokens <= self.token_counts[0]:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (tokens - self.token_counts[0])

    def add(self, message: Message, at: float) -> None:
        if message.error:
            self.error = message.error
            return
        self.arrivals.append(at)
        self.texts.append(message.text)
        self.token_ids.extend(message.token_ids)
        self.token_counts.append(len(message.token_ids) if message.frame else 1)
        if message.frame:
            self.frames.append(message.frame)
        if message.finish_reason:
            self.finish_reason = message.finish_reason
        if message.stream_id:
            self.stream_id = message.stream_id

    def add_headers(self, headers: Mapping[str, str], at: float) -> None:
        """Response headers or trailers."""
        self.headers_at = self.headers_at or at
        self.rpc_id = headers.get("x-request-id", self.rpc_id)
        if "grpc-status" in headers:
            self.grpc_status = int(headers["grpc-status"])
            self.grpc_message = headers.get("grpc-message", "")
            if self.grpc_status:
                self.error = self.error or self.grpc_message or f"gRPC status {self.grpc_status}"
        elif headers.get(":status", "200") != "200":
            self.error = f"HTTP status {headers[':status']}"


class Stream:
    """A client's handle on a running stream; ``reading`` may be looked at while it grows.

    on_end: called by whoever drives the stream, once it ended.
    """

    def __init__(self, client_id: str) -> None:
        self.reading = Reading(client_id=client_id, opened_at=time.monotonic())
        self.on_end: Callable[[], None] | None = None
        self._ended = threading.Event()

    def finish(self, at: float) -> None:
        if self.reading.closed_at is None:
            self.reading.closed_at = at
            self._ended.set()
        if self.on_end is not None:
            self.on_end()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """True once the stream has ended (trailers, reset, lost connection, or we left)."""
        return self._ended.wait(timeout_s)
