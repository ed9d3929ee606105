"""The far end of one simulated stream: Triton's and Envoy's buffers, the client's, and how it reads."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from sluiceway.cli.simulate.trace import Reader
from sluiceway.core.commands import Frame
from sluiceway.core.record import Record


class _Held(NamedTuple):
    """A frame from byte ``start`` of the body to byte ``end``."""

    start: int
    end: int
    tokens: int
    singles: int
    is_last: bool


class Client:
    """Bytes of the response body, absolute: sent >= forwarded >= let out >= read. Times in seconds.

    buffer_bytes: what the client takes in without reading; it gives that back in lumps of lump_bytes, as
    window updates come. envoy_bytes: what Envoy holds for the stream. A normal reader reads at once.
    """

    __slots__ = ("_buffer", "_envoy", "_frames", "_left", "_let_out", "_lump", "_now", "_read", "_reader", "_sent",
                 "frames", "got_all_at", "tokens")  # fmt: skip

    def __init__(self, reader: Reader, now: float, *, buffer_bytes: int, lump_bytes: int, envoy_bytes: int) -> None:
        self._reader = reader
        self._buffer = buffer_bytes
        self._lump = max(1, min(lump_bytes, buffer_bytes))
        self._envoy = envoy_bytes
        self._now = now
        self._sent = self._let_out = 0
        self._read = 0.0
        self._frames: deque[_Held] = deque()  # not let out yet
        self._left = False
        self.frames = 0  # sent
        self.tokens = 0  # let out, in whole frames
        self.got_all_at: float | None = None

    @property
    def delivered_tokens(self) -> int:
        """With those of a frame that is on its way, as far as it stands for frames of one token."""
        if not self._frames:
            return self.tokens
        head = self._frames[0]
        return self.tokens + (self._let_out - head.start) * head.singles // (head.end - head.start)

    def take(self, frame: Frame, now: float, singles: int = 0) -> None:
        """The pump sent ``frame``, which stands for so many frames of one token (and perhaps one more)."""
        self.advance(now)
        start, self._sent = self._sent, self._sent + frame.wire_bytes
        self.frames += 1
        is_last = frame.finish_reason is not None
        self._frames.append(_Held(start, self._sent, len(frame.token_ids), singles, is_last))
        self.advance(now)

    def leave(self, now: float) -> None:
        """Close the connection: nothing is let out from here on."""
        self.advance(now)
        self._left = True

    def advance(self, now: float) -> None:
        """Read on until ``now``."""
        if self._left:
            return
        began, self._now = self._now, now
        read, amount = self._read, self._reader.amount
        match self._reader.kind:
            case "normal":
                read = self._sent
            case "rate":
                read = min(read + amount * (now - began), self._sent)
            case "stop":
                read = min(amount, self._sent)
        self._read = read
        self._let_out = max(self._let_out, min(self._sent, self._returned(read) + self._buffer))
        frames = self._frames
        while frames and frames[0].end <= self._let_out:
            head = frames.popleft()
            self.tokens += head.tokens
            if head.is_last:
                self.got_all_at = now

    @property
    def room(self) -> int:
        """Bytes that would be let out at once, as of the last advance()."""
        return self._buffer + self._returned(self._read) - self._let_out if self._let_out == self._sent else 0

    def record(self, rpc_id: str) -> Record:
        """What Envoy would report as of the last advance()."""
        forwarded, messages = self._sent, self.frames
        if self._sent - self._let_out > self._envoy:
            limit = self._let_out + self._envoy
            held = sum(1 for frame in self._frames if frame.end > limit)
            messages = self.frames - held
            # Whole messages only: the filter counts a message when its last byte has passed.
            forwarded = self._frames[-held - 1].end if held < len(self._frames) else self._let_out
        return Record(rpc_id, messages, forwarded, self._let_out)

    def next_frame_at(self) -> float | None:
        """When the next whole frame will have been let out if no more is sent; None: never, or none waits."""
        return self._reaches(self._frames[0].end) if self._frames and not self._left else None

    def end_at(self) -> float | None:
        """When everything sent so far will have been let out; None: never."""
        if not self._frames:
            return self._now
        return None if self._left else self._reaches(self._frames[-1].end)

    def _reaches(self, end: int) -> float | None:
        missing = end - self._buffer
        needed = math.ceil(missing / self._lump) * self._lump
        needed = min(needed, self._sent)  # the tail is given back once all is read: no whole lump is left to wait for
        if self._reader.kind != "rate":
            return None  # the others have read all that they will
        return self._now + max(0.0, needed - self._read) / self._reader.amount

    def _returned(self, read: float) -> int:
        """What the server knows to have been read."""
        whole = int(read + 1e-6)  # a byte that is all but read must not cost another wait
        return whole - whole % self._lump if whole < self._sent else whole
