"""One open request, as the driver keeps it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from sluiceway.core.commands import Frame
from sluiceway.core.limits import Limits
from sluiceway.core.sender import BoundedSender
from sluiceway.core.window import FrameWindow
from sluiceway.engine.protocol import TokenEvent
from sluiceway.runtime.codec import GenerateRequest
from sluiceway.runtime.response_path import ResponsePath
from sluiceway.runtime.rpcs import Rpc
from sluiceway.runtime.source import TokenSource
from sluiceway.runtime.statistics import StreamSnapshot
from sluiceway.runtime.wire import stream_id_bytes

TOKEN_TIMES_KEPT = 64
_LONGEST_UNFINISHED = 3


class WholeAnswer:
    """A non-streamed answer while it grows: at most ``max_bytes`` of text and 4-byte token ids."""

    def __init__(self, max_bytes: int, *, keep_ids: bool) -> None:
        self._left = max_bytes
        self._keep_ids = keep_ids
        self._text = bytearray()
        self._ids: list[int] = []
        self.is_full = False

    def add(self, event: TokenEvent) -> None:
        """Tokens that no longer fit are dropped, and all after them: the answer stays a prefix."""
        size = len(event.text) + 4 * len(event.token_ids) * self._keep_ids
        self.is_full = self.is_full or size > self._left
        if not self.is_full:
            self._left -= size
            self._text += event.text
            self._ids += event.token_ids if self._keep_ids else ()

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self._ids)

    @property
    def text(self) -> str:
        """A sequence cut by the limit is left out; anything else that is no UTF-8 becomes U+FFFD."""
        text = bytes(self._text)
        return (text[: _whole_sequences(text)] if self.is_full else text).decode("utf-8", errors="replace")

    @property
    def size(self) -> int:
        return len(self._text) + 4 * len(self._ids)


def _whole_sequences(text: bytes) -> int:
    """Length of ``text`` without an unfinished UTF-8 sequence at its end."""
    for back in range(1, min(_LONGEST_UNFINISHED, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(text) - back if length > back else len(text)
    return len(text)


class _BookedWindow:
    """The RPC's window as one sender sees it: frames are booked with all that goes on the wire.

    The sender knows text and a fixed overhead; token ids, if asked for, and a whole answer come on top.
    """

    def __init__(self, stream: Stream, window: FrameWindow) -> None:
        self._stream = stream
        self._window = window
        self._is_first = True

    @property
    def has_signal(self) -> bool:
        return self._window.has_signal

    def admits(self, wire_bytes: int, tokens: int) -> bool:
        return self._window.admits(wire_bytes + self._stream.extra_bytes(tokens), tokens)

    def sent(self, request_id: str, frame: Frame) -> None:
        extra = self._stream.extra_bytes(len(frame.token_ids))
        if self._is_first or frame.finish_reason is not None:
            extra += stream_id_bytes(self._stream.request.stream_id)
        self._is_first = False
        self._window.sent(request_id, replace(frame, wire_bytes=frame.wire_bytes + extra) if extra else frame)


@dataclass(slots=True, eq=False)
class Stream:
    """Times are the driver's clock. ``sender`` is set once by open_stream().

    source: where its tokens come from. engine_id: under which name the engine knows it ("" if it does not).
    prompt_token_ids: kept only where the answer may have to be made anew.
    """

    request_id: str
    request: GenerateRequest
    path: ResponsePath
    rpc: Rpc
    source: TokenSource
    limits: Limits
    accepted_at: float
    whole: WholeAnswer | None
    sender: BoundedSender = field(init=False)
    engine_id: str = ""
    prompt_tokens: int = 0
    prompt_token_ids: tuple[int, ...] = ()
    tenant: str = ""
    token_times: deque[float] = field(default_factory=lambda: deque(maxlen=TOKEN_TIMES_KEPT))
    produced_tokens: int = 0
    first_token_at: float | None = None
    client_gone_at: float | None = None
    state_when_gone: str | None = None
    kv_free_at: float | None = None
    is_final_queued: bool = False

    @property
    def holds_kv(self) -> bool:
        return bool(self.engine_id)

    @property
    def max_tokens(self) -> int:
        return self.request.sampling.max_tokens

    def extra_bytes(self, tokens: int) -> int:
        """Wire bytes of a frame beyond its text and the overhead of a one-token frame."""
        ids = 4 * (tokens - 1) if self.request.outputs.token_ids and tokens else 0
        echo = len(self.request.prompt.encode()) if self.request.echo else 0
        return ids + (self.whole.size + echo if self.whole is not None else 0)

    def snapshot(self, now: float) -> StreamSnapshot:
        request = self.request
        return StreamSnapshot(
            request.client_id, request.rpc_id, self.engine_id, self.produced_tokens, self.sender.statistics(now)
        )

    def complete(self, frame: Frame) -> Frame:
        """The frame to send: a whole answer travels outside the sender, which only decides when."""
        if self.whole is None:
            return frame
        return replace(frame, text=self.whole.text, token_ids=self.whole.token_ids)


def open_stream(
    request_id: str,
    request: GenerateRequest,
    path: ResponsePath,
    rpc: Rpc,
    source: TokenSource,
    limits: Limits,
    max_whole_answer_bytes: int,
    now: float,
    *,
    first_sequence: int = 0,
    first_token_index: int = 0,
) -> Stream:
    """first_sequence, first_token_index: where the stream of a client that came back goes on."""
    whole = None if request.stream else WholeAnswer(max_whole_answer_bytes, keep_ids=request.outputs.token_ids)
    stream = Stream(request_id, request, path, rpc, source, limits, now, whole)
    stream.sender = BoundedSender(
        request_id,
        limits,
        _BookedWindow(stream, rpc.window),
        now,
        resumable=bool(request.stream_id),
        acks=request.acks,
        first_sequence=first_sequence,
        first_token_index=first_token_index,
    )
    return stream
