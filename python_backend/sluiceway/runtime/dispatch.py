"""Passes a stream's commands on: to where its tokens come from, to the pump, or to the spool."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.core.commands import (
    AbortGeneration,
    CloseSilently,
    Command,
    Frame,
    PauseGeneration,
    ReleaseKv,
    ResumeGeneration,
    SendFrame,
    SetWeight,
    SpoolFrame,
    SwapOut,
)
from sluiceway.runtime.outbox import Outbox
from sluiceway.runtime.stream import Stream


class Dispatch:
    """keep(stream, frame): a frame of a resumable stream, once each and in order, whoever else gets it.

    ``aborts``: AbortGeneration commands so far, one per stream at most.
    """

    def __init__(self, outbox: Outbox, keep: Callable[[Stream, Frame], None]) -> None:
        self._outbox = outbox
        self._keep = keep
        self.aborts = 0

    def execute(self, stream: Stream, command: Command) -> None:
        """Never blocks. StreamClosed and ReplaceGeneration are the driver's own."""
        match command:
            case SendFrame(frame, is_notice):
                stream.is_final_queued = frame.finish_reason is not None
                if stream.sender.is_resumable and not is_notice:
                    self._keep(stream, frame)
                self._outbox.send(stream, stream.complete(frame))
            case SpoolFrame(frame):
                self._keep(stream, frame)
            case CloseSilently():
                stream.is_final_queued = True
                self._outbox.close(stream)
            case PauseGeneration():
                stream.source.pause()
            case ResumeGeneration():
                stream.source.resume()
            case ReleaseKv():
                stream.source.release_kv()
            case SwapOut():
                stream.source.swap_out()
            case SetWeight(weight):
                stream.source.set_weight(weight)
            case AbortGeneration():
                self.aborts += 1
                stream.source.abort()
