"""Where each sequence is: in the batch, in line, paused; on the device, on the host; and in which state."""

from __future__ import annotations

from collections import Counter

from sluiceway.engine.batch import Batch
from sluiceway.engine.kv_pool import BlockPool
from sluiceway.engine.kv_space import KvSpace, Reclaim
from sluiceway.engine.sequence import Sequence, SequenceState
from sluiceway.engine.step_plan import StepPlan
from sluiceway.engine.waiting_queue import WaitingQueue


class Places:
    """A sequence is in one place; every move goes through here. step: number of the plan under way.

    recomputed_tokens: prefilled once more, since their KV had been dropped.
    """

    def __init__(
        self, pool: BlockPool, *, block_tokens: int, reclaim: Reclaim, aging_steps: int, swap_blocks_per_step: int
    ) -> None:
        self.step = self.recomputed_tokens = 0
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
        self.drop_kv(sequence)
        self.waiting.push(sequence, self.step)

    def drop_kv(self, sequence: Sequence) -> None:
        """Free what it has, here and on the host; it stays where it is."""
        self.kv.drop(sequence)
        self.enter(sequence, SequenceState.PREEMPTED)

    def pause(self, sequence: Sequence) -> None:
        """Out of the batch or the line; it keeps the KV it has, here or on the host."""
        self.take_out(sequence)
        sequence.is_paused = True
        self.kv.hold(sequence)
        state = SequenceState.PAUSED
        if sequence.host_blocks:
            state = SequenceState.SWAPPED
        elif sequence.ever_computed > 0 and not sequence.blocks:
            state = SequenceState.PREEMPTED
        self.enter(sequence, state)

    def commit(self, plan: StepPlan) -> None:
        """Everything in ``plan`` has been computed and copied."""
        for sequence in plan.decode:  # never computed before: only a prefill repeats work
            sequence.computed += 1
            sequence.ever_computed = sequence.computed
        for chunk in plan.prefill:
            sequence = chunk.sequence
            end = sequence.computed + chunk.length
            self.recomputed_tokens += max(0, min(end, sequence.ever_computed) - sequence.computed)
            sequence.computed = end
            sequence.ever_computed = max(end, sequence.ever_computed)
            if chunk.is_last:
                self.batch.prefilling.pop(sequence.request_id, None)
                self.enter(sequence, SequenceState.RUNNING)
        if plan.swap_out or plan.swap_in:
            self._end_transfers(plan)

    def _end_transfers(self, plan: StepPlan) -> None:
        for transfer in self.kv.swap.commit(plan):
            if transfer.is_out:
                self.enter(transfer.sequence, SequenceState.SWAPPED)
            else:
                self.put_in_line(transfer.sequence)

    def _lost_kv(self, sequence: Sequence) -> None:
        self.enter(sequence, SequenceState.PREEMPTED)
        if sequence.ticket is not None:
            self.waiting.push(sequence, self.step)
