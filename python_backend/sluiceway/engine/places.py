"""Where each sequence is: in the batch, in line, paused; on the device, on the host; and in which state."""

from __future__ import annotations

from collections import Counter

from sluiceway.engine.batch import Batch
from sluiceway.engine.kv_pool import BlockPool
from sluiceway.engine.kv_space import KvSpace, Reclaim
from sluiceway.engine.sequence import Sequence, SequenceState
from sluiceway.engine.waiting_queue import WaitingQueue


class Places:
    """A sequence is in one place; every move goes through here. step: number of the plan under way."""

    def __init__(
        self, pool: BlockPool, *, block_tokens: int, reclaim: Reclaim, aging_steps: int, swap_blocks_per_step: int
    ) -> None:
        self.step = 0
        self.counts: Counter[SequenceState] = Counter()
        self.batch = Batch()
        self.waiting = WaitingQueue(aging_steps)
        self.kv = KvSpace(
            pool,
            block_tokens=block_tokens,
            reclaim=reclaim,
            swap_blocks_per_step=swap_blocks_per_step,
            on_lost=self._lost_kv,
            on_swap_in_cancelled=self.put_in_line,
        )

    def enter(self, sequence: Sequence, state: SequenceState) -> None:
        self.counts[sequence.state] -= 1
        sequence.state = state
        self.counts[state] += 1

    def take_out(self, sequence: Sequence) -> None:
        """Out of wherever it is; it keeps its KV."""
        self.waiting.remove(sequence)
        self.batch.discard(sequence)
        self.kv.take_out(sequence)

    def put_in_line(self, sequence: Sequence) -> None:
        """To wait for a place in the batch, with the KV it has."""
        self.kv.hold(sequence)
        self.enter(sequence, SequenceState.WAITING)
        self.waiting.push(sequence, self.step)

    def preempt(self, sequence: Sequence) -> None:
        """Out of the batch, KV dropped, back in line."""
        self.take_out(sequence)
        self.kv.drop(sequence)
        self.enter(sequence, SequenceState.PREEMPTED)
        self.waiting.push(sequence, self.step)

    def _lost_kv(self, sequence: Sequence) -> None:
        self.enter(sequence, SequenceState.PREEMPTED)
        if sequence.ticket is not None:
            self.waiting.push(sequence, self.step)
