"""Where the frames of a returning client come from: the spool instead of the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from sluiceway.core.commands import Frame


class SpoolSource:
    """Takes a stream's commands in the engine's place. Pausing means: no more frames are fed.

    on_wanted: somebody should look at this source again, from outside the command that is being executed.
    is_remote: frames come in batches from Redis, by add(); otherwise the ledger is read.
    """

    def __init__(
        self, stream_id: str, sequence: int, *, is_remote: bool, on_wanted: Callable[[SpoolSource], None]
    ) -> None:
        self.stream_id = stream_id
        self.request_id = ""  # of the stream it feeds, once that is open
        self.first_sequence = self.next_sequence = sequence
        self.is_remote = is_remote
        self.is_paused = self.is_aborted = self.is_over = False
        self.is_asked = is_remote  # the look-up is also the first question
        self.lost = ""  # why no more frames will come from Redis
        self._batch: deque[Frame] = deque()
        self._on_wanted = on_wanted

    # --- what a stream's source is told ------------------------------------------------------------

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self._on_wanted(self)

    def abort(self) -> None:
        self.is_aborted = True
        self._on_wanted(self)

    def release_kv(self) -> None:
        """It has none."""

    def swap_out(self) -> None:
        """It has none."""

    def set_weight(self, weight: float) -> None:
        """Nobody else waits for what it does."""

    # --- the frames --------------------------------------------------------------------------------

    @property
    def may_feed(self) -> bool:
        return not (self.is_paused or self.is_aborted or self.is_over)

    def add(self, frames: Iterable[Frame]) -> None:
        """A batch came from Redis."""
        self.is_asked = False
        self.put(frames)
        self._on_wanted(self)

    def put(self, frames: Iterable[Frame]) -> None:
        """As add(), for somebody who is looking at it anyway."""
        self._batch.extend(frames)

    def lose(self, why: str) -> None:
        self.lost = why
        self._on_wanted(self)

    def take(self) -> Frame | None:
        """The next frame of the batch."""
        return self._batch.popleft() if self._batch else None

    def fed(self, frame: Frame) -> None:
        """The stream has taken it."""
        self.next_sequence = frame.sequence + 1
        self.is_over = frame.finish_reason is not None
