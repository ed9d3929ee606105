"""The frames kept of one stream."""

from __future__ import annotations

import itertools
from collections import deque

from sluiceway.core.commands import Frame
from sluiceway.core.spool_record import END_BYTES, cost_bytes, unpack


class SpooledStream:
    """Frames ``first_sequence`` to ``next_sequence - 1``; those below ``confirmed`` were delivered.

    floor_bytes: what it may need whatever comes, and so is charged at least.
    """

    def __init__(self, stream_id: str, tenant: str, floor_bytes: int) -> None:
        self.stream_id = stream_id
        self.tenant = tenant
        self.floor_bytes = floor_bytes
        self.first_sequence = 0
        self.confirmed = 0
        self.bytes = 0
        self.delivered_bytes = 0
        self.charged = 0  # what the spool's budgets hold for it; the spool's own
        self.is_complete = False
        self.is_attached = True
        self._records: deque[bytes] = deque()
        self._next_token_index = 0

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + len(self._records)

    @property
    def undelivered_bytes(self) -> int:
        return self.bytes - self.delivered_bytes

    def charge(self, more_bytes: int = 0, *, completes: bool = False) -> int:
        """What it takes of the budgets with ``more_bytes``; an open stream can always be ended with a word."""
        if self.is_complete or completes:
            return self.bytes + more_bytes
        return max(self.floor_bytes, self.bytes + more_bytes + END_BYTES)

    def append(self, frame: Frame, record: bytes) -> None:
        self._records.append(record)
        self.bytes += cost_bytes(record)
        self._next_token_index = frame.first_token_index + len(frame.token_ids)
        self.is_complete = frame.finish_reason is not None

    def confirm(self, sequence: int) -> None:
        """Every frame below ``sequence`` was delivered. Never goes back, and not beyond what is here."""
        end = min(sequence, self.next_sequence)
        if end > self.confirmed:
            self.delivered_bytes += self._size(max(self.confirmed, self.first_sequence), end)
            self.confirmed = end

    def rewind(self, sequence: int) -> None:
        """A client came back and wants ``sequence`` next: nothing from there on counts as delivered."""
        self.confirmed = sequence
        self.delivered_bytes = self._size(self.first_sequence, sequence)

    def retain(self, max_bytes: int) -> None:
        """Of what was delivered, forget the oldest beyond ``max_bytes``."""
        while self.delivered_bytes > max_bytes and self.drop_oldest():
            pass

    def drop_oldest(self) -> bool:
        """Forget the oldest frame if it was delivered; answers whether there was one."""
        if not self._records or self.first_sequence >= self.confirmed:
            return False
        size = cost_bytes(self._records.popleft())
        self.first_sequence += 1
        self.bytes -= size
        self.delivered_bytes -= size
        return True

    def token_index(self, sequence: int) -> int:
        """Of the first token of frame ``sequence``, which may be the next one."""
        if sequence == self.next_sequence:
            return self._next_token_index
        return unpack(self._records[sequence - self.first_sequence]).first_token_index

    def read(self, sequence: int, max_bytes: int) -> tuple[Frame, ...]:
        """Frames from ``sequence`` on, up to ``max_bytes`` but at least one if there is one.

        Raises IndexError for a frame that is no longer here.
        """
        if sequence < self.first_sequence:
            raise IndexError(f"frame {sequence} is gone, the oldest here is {self.first_sequence}")
        frames: list[Frame] = []
        left = max_bytes
        for record in itertools.islice(self._records, sequence - self.first_sequence, None):
            left -= cost_bytes(record)
            if frames and left < 0:
                break
            frames.append(unpack(record))
        return tuple(frames)

    def _size(self, start: int, end: int) -> int:
        first = self.first_sequence
        return sum(cost_bytes(record) for record in itertools.islice(self._records, start - first, end - first))
