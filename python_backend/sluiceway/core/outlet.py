"""The way out of one stream: from tokens to frames that fit the RPC's window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.core.framing import FrameBuffer
from sluiceway.core.levels import Levels
from sluiceway.core.limits import Limits, Size
from sluiceway.core.window import FrameWindow

_MAX_OUTSTANDING_SENDS = 2  # more frames than this whose send has not returned: the pump lags, so merge


class Outlet:
    """Every frame it yields from ready(), cut() and notice() is booked in the window and must be handed to
    the pump, in that order. What to_spool() yields is for the spool alone. is_replay: its frames come from there.
    acks: the client acknowledges frames.

    Raises ValueError for limits under which no frame could be made.
    """

    def __init__(
        self,
        request_id: str,
        limits: Limits,
        window: FrameWindow,
        *,
        first_sequence: int,
        first_token_index: int,
        acks: bool = False,
    ) -> None:
        self._request_id = request_id
        self._window = window
        self._first_sequence = first_sequence
        self._buffer = FrameBuffer(
            min(limits.max_frame_bytes, limits.window.bytes),
            limits.frame_overhead_bytes,
            limits.window.tokens,
            first_sequence=first_sequence,
            first_token_index=first_token_index,
        )
        # At 0 unconfirmed nothing would ever end the wait.
        self._merge_frames = max(1, limits.merge_frames)
        self.levels = Levels(acks=acks)
        self.discarded = self.spooled = Size.ZERO
        self.is_blocked = False  # the next frame does not fit the window
        self.is_replay = False

    @property
    def backlog(self) -> Size:
        """Produced and not known to be with the client: wire bytes of frames, text bytes of what is in none yet."""
        return self.levels.unconfirmed + self._buffer.pending

    @property
    def produced(self) -> Size:
        return self.levels.framed + self.spooled + self._buffer.pending + self.discarded

    @property
    def is_finished(self) -> bool:
        """The last frame is known; nothing may be added."""
        return self._buffer.is_finished

    @property
    def next_sequence(self) -> int:
        """The number that the next replayed frame must have."""
        return self._buffer.next_sequence

    @property
    def sequence_range(self) -> str:
        """For people: which frames were handed out."""
        count = self.levels.framed.frames
        return f"{self._first_sequence} to {self._first_sequence + count - 1} were" if count else "none was"

    def frames_up_to(self, sequence: int) -> int:
        """How many of this outlet's frames there are up to and with ``sequence``."""
        return sequence + 1 - self._first_sequence

    def add(self, token_ids: tuple[int, ...], text: bytes) -> None:
        """Tokens made before the engine heard that the answer has ended are dropped, and counted."""
        if self._buffer.is_finished:
            self.discarded += Size(bytes=len(text), tokens=len(token_ids), frames=0)
        else:
            self._buffer.append(token_ids, text)

    def replay(self, frame: Frame) -> None:
        """As add(), for a frame that was made before and goes out again under its own number."""
        self.is_replay = True
        if self._buffer.is_finished:
            self.discarded += Size(bytes=len(frame.text.encode()), tokens=len(frame.token_ids), frames=0)
        else:
            self._buffer.replay(frame)

    def finish(self, reason: FinishReason, *, complete: bool) -> None:
        """See FrameBuffer.finish; the first reason stands."""
        if not self._buffer.is_finished:
            self._buffer.finish(reason, complete=complete)

    def discard(self, reason: FinishReason) -> None:
        """Drop what no frame carries yet; nothing more comes out."""
        self.discarded += self._buffer.discard(reason)

    def cut(self, reason: FinishReason) -> Frame:
        """Drop what no frame carries yet and answer the last, empty frame, whether or not it fits the window."""
        self.discard(reason)
        self._buffer.finish(reason, complete=False)
        return self._take()

    def notice(self, reason: FinishReason) -> tuple[Frame, Frame]:
        """The last frame for this client, empty, and what stands under its number in the spool.

        So the numbers of the spool have no gap, and a client that took the notice for a frame like any
        other loses nothing when it asks for the one after.
        """
        frame = self._buffer.notice(reason)
        self._book(frame)
        return frame, replace(frame, finish_reason=None)

    def restart(self) -> None:
        """Drop what no frame carries yet: another answer comes in place of this one."""
        self.discarded += self._buffer.restart()

    def to_spool(self) -> Iterator[Frame]:
        """Everything pending, whatever the window says: nobody is connected to take it."""
        self.is_blocked = False
        while (frame := self._buffer.take()) is not None:
            self.spooled += Size(bytes=frame.wire_bytes, tokens=len(frame.token_ids), frames=1)
            yield frame

    def ready(self, *, may_merge: bool, has_signal: bool) -> Iterator[Frame]:
        """The frames that may go out now; may_merge: more text may come, so waiting can pay."""
        self.is_blocked = False
        while (head := self._buffer.head) is not None:
            if not self._window.admits(head.bytes, head.tokens):
                self.is_blocked = True
                return
            if may_merge and self._buffer.head_can_grow and self._is_behind(has_signal):
                return
            yield self._take()

    def _is_behind(self, has_signal: bool) -> bool:
        """Whether frames are on their way of which news will come: only then may text wait for them."""
        if self.levels.outstanding_sends > _MAX_OUTSTANDING_SENDS:
            return True
        return has_signal and self.levels.unconfirmed.frames >= self._merge_frames

    def _take(self) -> Frame:
        frame = self._buffer.take()
        assert frame is not None  # callers know that there is one
        self._book(frame)
        return frame

    def _book(self, frame: Frame) -> None:
        self._window.sent(self._request_id, frame)
        self.levels.add(frame)
