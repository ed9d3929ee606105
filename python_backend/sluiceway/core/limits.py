"""The flow-control limits of one stream, and where they come from in docs/flow-control.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """An amount of stream content in its three units; comparisons are per unit."""

    bytes: int
    tokens: int
    frames: int

    ZERO: ClassVar[Size]

    def __add__(self, other: Size) -> Size:
        return Size(
            bytes=self.bytes + other.bytes, tokens=self.tokens + other.tokens, frames=self.frames + other.frames
        )

    def __sub__(self, other: Size) -> Size:
        return Size(
            bytes=self.bytes - other.bytes, tokens=self.tokens - other.tokens, frames=self.frames - other.frames
        )

    def exceeds(self, limit: Size) -> bool:
        """Whether any unit is above the limit's."""
        return self.bytes > limit.bytes or self.tokens > limit.tokens or self.frames > limit.frames


Size.ZERO = Size(bytes=0, tokens=0, frames=0)

_UNBOUNDED = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class CushionLimits:
    """Ample from ``high_s`` on, until below ``low_s``; also if nothing was taken for ``quiet_s``.

    low_s must cover the way back into the batch (the signal's 0.15 s, a place, a copy or a recompute).
    quiet_s: ten records without progress; a client that takes its buffer in lumps has a lump to read meanwhile.
    min_tokens: fewer are never ample, and half as many end it. Raises ValueError naming the field.
    """

    high_s: float = 4.0
    low_s: float = 2.0
    quiet_s: float = 1.0
    min_tokens: int = 16

    def __post_init__(self) -> None:
        if not 0 < self.low_s <= self.high_s:
            raise ValueError(f"low_s is {self.low_s}, must be above 0 and at most high_s ({self.high_s})")
        if self.quiet_s <= 0:
            raise ValueError(f"quiet_s is {self.quiet_s}, must be above 0")
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens is {self.min_tokens}, must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes first (memory, network), tokens and frames beside them. Times in seconds.

    window: unconfirmed content that may be with Triton and Envoy at once, per RPC.
    high / low: pause when the backlog (produced - delivered) exceeds high in any unit, resume once it
    is at or below low in every unit.
    cushion: pause as well while what is unread lasts the client for so long (cushion.py). None: never.
    merge_frames: with this many frames unconfirmed, increments wait and merge into larger frames.
    max_silence_s: unconfirmed content and no progress for this long ends the stream ("stalled").
    signal_timeout_s: window full and no delivery signal for this long ends it ("no_signal").
    drain_timeout_s: after an abort, how long queued frames may still leave.
    pausing: False = run to completion (the baseline arm): high and low do not count.
    max_backlog_bytes: then it pauses above this after all, and resumes at half of it. None: never.
    degrade_after_s: out of the batch without progress for this long, the answer is replaced by a short
    one. None: never.
    """

    window: Size = Size(bytes=16 * 1024, tokens=4096, frames=64)
    high: Size = Size(bytes=16 * 1024, tokens=256, frames=96)
    low: Size = Size(bytes=4 * 1024, tokens=64, frames=24)
    cushion: CushionLimits | None = CushionLimits()
    max_frame_bytes: int = 4096
    merge_frames: int = 16
    frame_overhead_bytes: int = 110
    max_silence_s: float = 60.0
    signal_timeout_s: float = 5.0
    drain_timeout_s: float = 2.0
    pausing: bool = True
    max_backlog_bytes: int | None = None
    degrade_after_s: float | None = None

    @property
    def marks(self) -> tuple[Size, Size]:
        """The high and low watermark that count."""
        if self.pausing:
            return self.high, self.low
        most = _UNBOUNDED if self.max_backlog_bytes is None else self.max_backlog_bytes
        return (
            Size(bytes=most, tokens=_UNBOUNDED, frames=_UNBOUNDED),
            Size(bytes=most // 2, tokens=_UNBOUNDED, frames=_UNBOUNDED),
        )

    @property
    def max_stream_bytes(self) -> int:
        """Worst case of what one paused-in-time stream keeps in this process and in Triton, in bytes.

        What a grant to run ahead adds is the spool's: it is granted out of the spool's room.

        Window and watermark may be filled by different content, one frame may be larger than what is
        left, and tokens already on their way when the pause is asked for still arrive (one more frame).
        """
        high, _ = self.marks
        return self.window.bytes + high.bytes + 2 * self.max_frame_bytes
