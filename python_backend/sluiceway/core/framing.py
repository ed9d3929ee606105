"""Tokens in, frames out: whole UTF-8 sequences only, small increments merged while they wait."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.core.limits import Size

_LONGEST_SEQUENCE = 4  # bytes of one UTF-8 character


@dataclass(slots=True)
class _Chunk:
    """A frame to be. Increments are packed on arrival, so each byte and token is touched a fixed number of times."""

    token_ids: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    text_bytes: int = 0
    is_sealed: bool = False  # a frame that was made before and keeps its number: nothing joins it

    def add(self, token_ids: Sequence[int], text: bytes) -> None:
        self.token_ids.extend(token_ids)
        self.pieces.append(text)
        self.text_bytes += len(text)


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


class FrameBuffer:
    """What the engine made and no frame carries yet, packed into frames of at most ``max_frame_bytes``.

    Text is decoded as by an incremental UTF-8 decoder with errors="replace": at most 3 bytes of an
    unfinished sequence are held back, and they are not content until they are decoded. A token goes
    into the frame in which its text starts; one increment (one append) is only split if it alone is
    larger than a frame. ``max_frame_tokens`` closes a frame early; one increment may still exceed it.
    first_sequence, first_token_index: where a stream goes on that began elsewhere.

    Raises ValueError if a frame could not hold one character.
    """

    def __init__(
        self,
        max_frame_bytes: int,
        frame_overhead_bytes: int,
        max_frame_tokens: int | None = None,
        *,
        first_sequence: int = 0,
        first_token_index: int = 0,
    ) -> None:
        smallest = frame_overhead_bytes + _LONGEST_SEQUENCE
        if max_frame_bytes < smallest:
            raise ValueError(
                f"max_frame_bytes is {max_frame_bytes}, must be at least {smallest}"
                f" (frame_overhead_bytes {frame_overhead_bytes} and one character)"
            )
        self._max_text_bytes = max_frame_bytes - frame_overhead_bytes
        self._max_tokens = max_frame_tokens
        self._overhead = frame_overhead_bytes
        self._decoder = _decoder()
        self._chunks: deque[_Chunk] = deque()
        self._pending_bytes = 0
        self._pending_tokens = 0
        self._sequence = first_sequence
        self._token_index = first_token_index
        self._finish_reason: FinishReason | None = None

    @property
    def pending(self) -> Size:
        """Text bytes and tokens in no frame yet; frames is 0."""
        return Size(bytes=self._pending_bytes, tokens=self._pending_tokens, frames=0)

    @property
    def head(self) -> Size | None:
        """What the next take() would hand out, bytes as on the wire; None if there is nothing."""
        if not self._chunks:
            return None
        chunk = self._chunks[0]
        return Size(bytes=chunk.text_bytes + self._overhead, tokens=len(chunk.token_ids), frames=1)

    @property
    def head_can_grow(self) -> bool:
        """Whether waiting could merge more into the next frame."""
        return len(self._chunks) == 1 and not self._chunks[0].is_sealed and not self.is_finished

    @property
    def next_sequence(self) -> int:
        """The number that the next replayed frame must have."""
        return self._sequence + len(self._chunks)

    @property
    def is_finished(self) -> bool:
        return self._finish_reason is not None

    def append(self, token_ids: Sequence[int], text: bytes) -> None:
        """Add one increment. Raises ValueError after finish() or cut()."""
        if self.is_finished:
            raise ValueError("text after the end of the answer")
        self._pack(token_ids, self._decoder.decode(text).encode())

    def replay(self, frame: Frame) -> None:
        """Add a frame that was made before: it comes out as it is, under its own number.

        Never split, even if it is a little larger than max_frame_bytes here: outputs that were asked for
        this time may cost more. Raises ValueError after the end, or for a number out of turn.
        """
        if self.is_finished or frame.sequence != self.next_sequence:
            raise ValueError(f"frame {frame.sequence} is out of turn, {self.next_sequence} is next")
        chunk = _Chunk(is_sealed=True)
        chunk.add(frame.token_ids, frame.text.encode())
        self._chunks.append(chunk)
        self._pending_bytes += chunk.text_bytes
        self._pending_tokens += len(chunk.token_ids)
        self._finish_reason = frame.finish_reason

    def finish(self, reason: FinishReason, *, complete: bool = True) -> None:
        """The answer ends here: the last frame (an empty one, if nothing is pending) carries ``reason``.

        complete: the model ended it, so an unfinished UTF-8 sequence becomes U+FFFD. If we ended it,
        such a sequence is dropped: the model did not make that U+FFFD.
        """
        if complete:
            self._pack((), self._decoder.decode(b"", final=True).encode())
        if not self._chunks:
            self._chunks.append(_Chunk())
        self._finish_reason = reason

    def take(self) -> Frame | None:
        """The next frame, or None if nothing is pending."""
        if not self._chunks:
            return None
        chunk = self._chunks.popleft()
        frame = Frame(
            sequence=self._sequence,
            first_token_index=self._token_index,
            token_ids=tuple(chunk.token_ids),
            text=b"".join(chunk.pieces).decode(),
            wire_bytes=chunk.text_bytes + self._overhead,
            finish_reason=None if self._chunks else self._finish_reason,
        )
        self._sequence += 1
        self._token_index += len(chunk.token_ids)
        self._pending_bytes -= chunk.text_bytes
        self._pending_tokens -= len(chunk.token_ids)
        return frame

    def notice(self, reason: FinishReason) -> Frame:
        """An empty frame with ``reason`` before what is pending, which stays and goes on behind it."""
        frame = Frame(self._sequence, self._token_index, (), "", self._overhead, reason)
        self._sequence += 1
        return frame

    def discard(self, reason: FinishReason) -> Size:
        """Drop what is pending and take no more; answers what was dropped."""
        dropped = self._clear()
        self._finish_reason = reason
        return dropped

    def restart(self) -> Size:
        """Drop what is pending; another text follows, from token index 0. Answers what was dropped."""
        self._decoder = _decoder()
        self._token_index = 0
        self._finish_reason = None
        return self._clear()

    def _clear(self) -> Size:
        dropped = self.pending
        self._chunks.clear()
        self._pending_bytes = self._pending_tokens = 0
        return dropped

    def _pack(self, token_ids: Sequence[int], text: bytes) -> None:
        if not token_ids and not text:
            return
        self._pending_bytes += len(text)
        self._pending_tokens += len(token_ids)
        if not self._chunks or not self._fits(self._chunks[-1], len(token_ids), len(text)):
            self._chunks.append(_Chunk())
        start = 0
        while len(text) - start > self._max_text_bytes:
            end = start + self._max_text_bytes
            while text[end] & 0xC0 == 0x80:  # inside a sequence: at most 3 steps back to its start
                end -= 1
            self._chunks[-1].add(token_ids, text[start:end])
            self._chunks.append(_Chunk())
            token_ids, start = (), end
        self._chunks[-1].add(token_ids, text[start:])

    def _fits(self, chunk: _Chunk, tokens: int, text_bytes: int) -> bool:
        return (
            not chunk.is_sealed
            and chunk.text_bytes + text_bytes <= self._max_text_bytes
            and (self._max_tokens is None or len(chunk.token_ids) + tokens <= self._max_tokens)
        )
