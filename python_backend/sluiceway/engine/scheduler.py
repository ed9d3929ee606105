"""Continuous batching over paged KV blocks: decides what one step computes. No tensors, no clock.

How an engine drives it: step_plan.py.
"""

from __future__ import annotations

import math

from sluiceway.engine.kv_pool import BlockPool
from sluiceway.engine.kv_space import Reclaim
from sluiceway.engine.places import Places
from sluiceway.engine.planner import Planner
from sluiceway.engine.prices import Prices
from sluiceway.engine.sequence import Sequence, SequenceState
from sluiceway.engine.step_plan import Chunk, Copy, StepPlan
from sluiceway.engine.waiting_queue import Lane

__all__ = ["Chunk", "Copy", "Reclaim", "Scheduler", "StepPlan"]


class Scheduler:
    """A step's cost depends on the batch only, never on how many sequences wait or are paused.

    Every non-empty backlog makes progress, also with all KV blocks in use: the batch's oldest member
    can always take blocks from those outside the batch and then from the newest in the batch. (Not so
    with reclaim "none": has_work() is then False until somebody lets go.)

    Order: first come, first served, those that have begun before those that never ran. Buffer-aware:
    those whose clients fell behind stand among those that never ran, and a waiting sequence of full weight
    may displace a member whose client has plenty unread (weight below 1) and that has had
    ``quantum_steps``, if that pays (Prices); equal ones never, so normal readers alone see no difference.
    Nobody starves: see WaitingQueue for the bound.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_tokens: int,
        max_batch_streams: int,
        prefill_chunk_tokens: int,
        host_blocks: int = 0,
        admission_free_share: float = 0.0,
        reclaim: Reclaim = "any",
        buffer_aware: bool = True,
        quantum_steps: int = 8,
        aging_steps: int = 64,
        swap_blocks_per_step: int = 64,
    ) -> None:
        """admission_free_share: of all blocks, kept free when one that never ran is admitted, so that those
        that run can grow. reclaim: whose KV may be dropped (KvSpace). swap_blocks_per_step: copied each way.
        """
        for name, value in {
            "kv_block_tokens": block_tokens,
            "max_batch_streams": max_batch_streams,
            "prefill_chunk_tokens": prefill_chunk_tokens,
            "quantum_steps": quantum_steps,
            "aging_steps": aging_steps,
            "swap_blocks_per_step": swap_blocks_per_step,
        }.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= admission_free_share < 1:
            raise ValueError(f"admission_free_share must be at least 0 and below 1, got {admission_free_share}")
        self.pool = pool
        self.block_tokens = block_tokens
        self.sequences: dict[str, Sequence] = {}
        self._max_batch = max_batch_streams
        self._is_buffer_aware = buffer_aware
        self._is_stuck = False  # until somebody lets go
        self._places = Places(
            pool,
            block_tokens=block_tokens,
            reclaim=reclaim,
            aging_steps=aging_steps,
            swap_blocks_per_step=swap_blocks_per_step,
        )
        self._planner = Planner(
            self._places,
            block_tokens=block_tokens,
            max_batch_streams=max_batch_streams,
            prefill_chunk_tokens=prefill_chunk_tokens,
            kept_free_blocks=int(admission_free_share * pool.total),
            quantum_steps=quantum_steps,
        )
        self._kv, self._waiting, self._batch = self._places.kv, self._places.waiting, self._places.batch
        self.host_pool: BlockPool | None = None
        if host_blocks:
            self.set_host_pool(BlockPool(host_blocks))

    def set_host_pool(self, pool: BlockPool) -> None:
        """Give it host memory to swap to; before the first sequence."""
        self.host_pool = self._kv.swap.host = pool

    def set_prices(self, prices: Prices) -> None:
        """What giving KV up costs on this machine: decides who gives it up for whom, and how. At first, nothing.

        Ignored unless buffer-aware: then nobody gives way, and paused ones' KV is dropped for who needs it.
        """
        if self._is_buffer_aware:
            self._planner.prices = prices

    def count(self, state: SequenceState) -> int:
        return self._places.counts[state]

    def has_work(self) -> bool:
        """False also if nothing can be done until some other method is called."""
        return not self._is_stuck and bool(self._batch or self._waiting or self._kv.swap.is_busy)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that one sequence could hold with all blocks to itself."""
        return self.pool.total * self.block_tokens

    @property
    def batch_streams(self) -> int:
        """Places in the batch that are taken."""
        return len(self._batch)

    @property
    def batch_free(self) -> int:
        return self._max_batch - len(self._batch)

    @property
    def waiting(self) -> int:
        """Sequences that wait for the batch while their client waits for them."""
        return self._waiting.urgent

    @property
    def oldest_waiting(self) -> str | None:
        """Of those that never ran, the first in line."""
        head = self._waiting.first(Lane.NEW)
        return None if head is None else head.request_id

    @property
    def host_blocks_total(self) -> int:
        """0 without swapping."""
        return self.host_pool.total if self.host_pool else 0

    @property
    def host_blocks_free(self) -> int:
        return self.host_pool.free_count if self.host_pool else 0

    @property
    def recomputed_tokens(self) -> int:
        """Prefilled once more, since their KV had been dropped."""
        return self._places.recomputed_tokens

    @property
    def displacements(self) -> int:
        """How often one with plenty unread gave up its place in the batch."""
        return self._planner.displacements

    @property
    def swap_outs(self) -> int:
        return self._kv.swap.swap_outs

    @property
    def swap_ins(self) -> int:
        return self._kv.swap.swap_ins

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. Raises ValueError for a known id, or one that could never be computed."""
        if sequence.request_id in self.sequences:
            raise ValueError(f"request_id {sequence.request_id!r} is already in the engine")
        tokens = len(sequence.token_ids)
        blocks = self._kv.blocks_for(tokens)
        if blocks > self.pool.total:
            raise ValueError(
                f"prompt of {tokens} tokens needs {blocks} KV blocks of {self.block_tokens} tokens, "
                f"the pool has kv_blocks {self.pool.total}"
            )
        self._is_stuck = False
        self.sequences[sequence.request_id] = sequence
        self._places.counts[sequence.state] += 1
        self._waiting.push(sequence, self._places.step)

    def pause(self, request_id: str) -> None:
        """Out of the batch or queue, KV kept until somebody needs the blocks. A copy under way is called off."""
        sequence = self.sequences.get(request_id)
        if sequence is None or sequence.is_paused:
            return
        self._is_stuck = False
        sequence.has_lagged |= self._is_buffer_aware
        self._places.pause(sequence)

    def resume(self, request_id: str) -> None:
        """Back into the queue: with its KV if it still has it, here or on the host, else to be recomputed."""
        sequence = self.sequences.get(request_id)
        if sequence is None or not sequence.is_paused:
            return
        self._is_stuck = False
        self._places.take_out(sequence)
        sequence.is_paused = False
        self._places.put_in_line(sequence)

    def swap_out(self, request_id: str) -> None:
        """Copy a paused sequence's KV to host memory in the next steps. Ignored unless it is paused and holds
        KV on the device, and if the host has no room for all of it.
        """
        sequence = self.sequences.get(request_id)
        if sequence is not None and sequence.is_paused and self._kv.start_swap_out(sequence):
            self._is_stuck = False

    def release_kv(self, request_id: str) -> None:
        """Drop a paused sequence's KV, wherever it lies, keep its tokens. Ignored unless paused and holding KV."""
        sequence = self.sequences.get(request_id)
        if sequence is not None and sequence.is_paused and (sequence.blocks or sequence.host_blocks):
            self._is_stuck = False
            self._places.drop_kv(sequence)

    def set_weight(self, request_id: str, weight: float) -> None:
        """1.0: its client waits for the next token; less: it has plenty unread. Larger ones are queued first.

        Raises ValueError unless finite and above 0. Ignored unless buffer-aware.
        """
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"weight must be finite and above 0, got {weight}")
        sequence = self.sequences.get(request_id)
        if sequence is None or sequence.weight == weight or not self._is_buffer_aware:
            return
        sequence.weight = weight
        sequence.has_lagged |= weight < 1
        if sequence in self._batch:
            self._batch.weigh(sequence)
        elif sequence.ticket is not None:
            self._waiting.push(sequence, self._places.step)
            self._kv.hold_again(sequence)

    def remove(self, request_id: str) -> Sequence | None:
        """Forget a sequence, in any state; its blocks are free on return. None for an unknown id."""
        sequence = self.sequences.pop(request_id, None)
        if sequence is not None:
            self._is_stuck = False
            self._places.take_out(sequence)
            self._places.counts[sequence.state] -= 1
            self._kv.drop(sequence)
        return sequence

    def plan(self) -> StepPlan:
        """What to compute now; empty only if there is nothing to do, or (reclaim "none") nothing can be done."""
        plan = self._planner.plan()
        self._is_stuck = not plan
        return plan

    def commit(self, plan: StepPlan) -> None:
        """Everything in ``plan`` has been computed and copied."""
        self._places.commit(plan)
