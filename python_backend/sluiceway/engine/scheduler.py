"""Continuous batching over paged KV blocks: decides what one step computes. No tensors, no clock.

How an engine drives it, all on the engine thread::

    plan = scheduler.plan()                # blocks for everything planned are allocated in blocks
    for chunk in plan.prefill:             # compute KV of token_ids[start : start + length]
        ...
    for sequence in plan.decode:           # compute KV of token_ids[computed], one token
        ...
    scheduler.commit(plan)                 # the KV now exists: computed moves on
    for sequence in plan.sampled:          # decodes and last chunks: their last position's logits
        sequence.append(token_id)          # are those of the next token
        if ended:
            scheduler.remove(sequence.request_id)  # blocks are free from here on

Between plan() and the last append()/remove() no other method may be called. A preempted or
released sequence recomputes prompt and answer so far as prefill; its last chunk samples the next
token as after a prompt, so an engine needs no case for it. An engine
ends a sequence before it outgrows capacity_tokens.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from typing import Literal

from sluiceway.engine.kv_pool import BlockPool
from sluiceway.engine.sequence import Sequence, SequenceState
from sluiceway.engine.step_plan import Chunk, StepPlan
from sluiceway.engine.waiting_queue import WaitingQueue

__all__ = ["Chunk", "Reclaim", "Scheduler", "StepPlan"]

Reclaim = Literal["any", "none"]


class Scheduler:
    """A step's cost depends on the batch only, never on how many sequences wait or are paused.

    Every non-empty backlog makes progress, also with all KV blocks in use: the batch's oldest member
    can always take blocks from those paused longest and then from the newest in the batch.
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
    ) -> None:
        names = ("kv_block_tokens", "max_batch_streams", "prefill_chunk_tokens")
        for name, value in zip(names, (block_tokens, max_batch_streams, prefill_chunk_tokens), strict=True):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.pool = pool
        self.block_tokens = block_tokens
        self.recomputed_tokens = 0
        self.sequences: dict[str, Sequence] = {}
        self._max_batch = max_batch_streams
        self._chunk_budget = prefill_chunk_tokens
        self._waiting = WaitingQueue()
        self._batch: dict[str, Sequence] = {}  # in order of admission
        # Sequences outside the batch that hold blocks, the first to lose them first.
        self._paused_holders: OrderedDict[str, Sequence] = OrderedDict()
        self._resumed_holders: OrderedDict[str, Sequence] = OrderedDict()
        self._counts: Counter[SequenceState] = Counter()

    def count(self, state: SequenceState) -> int:
        return self._counts[state]

    def has_work(self) -> bool:
        return bool(self._batch or self._waiting)

    @property
    def batch_streams(self) -> int:
        """Places in the batch."""
        return self._max_batch

    @property
    def batch_free(self) -> int:
        return self._max_batch - len(self._batch)

    @property
    def waiting(self) -> int:
        """Sequences whose client waits for them to get into the batch."""
        return len(self._waiting)

    @property
    def oldest_waiting(self) -> str | None:
        """Of those that never ran, the one added first."""
        head = self._waiting.head()
        return head.request_id if head is not None and head.ever_computed == 0 else None

    @property
    def host_blocks_total(self) -> int:
        return 0

    @property
    def host_blocks_free(self) -> int:
        return 0

    @property
    def capacity_tokens(self) -> int:
        """Tokens that one sequence could hold with all blocks to itself."""
        return self.pool.total * self.block_tokens

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. Raises ValueError for a known id, or one that could never be computed."""
        if sequence.request_id in self.sequences:
            raise ValueError(f"request_id {sequence.request_id!r} is already in the engine")
        tokens = len(sequence.token_ids)
        if self._blocks_for(tokens) > self.pool.total:
            raise ValueError(
                f"prompt of {tokens} tokens needs {self._blocks_for(tokens)} KV blocks of {self.block_tokens} tokens, "
                f"the pool has kv_blocks {self.pool.total}"
            )
        self.sequences[sequence.request_id] = sequence
        self._counts[sequence.state] += 1
        self._waiting.push(sequence)

    def pause(self, request_id: str) -> None:
        """Out of the batch or queue, KV kept until somebody needs the blocks."""
        sequence = self.sequences.get(request_id)
        if sequence is None or sequence.is_paused:
            return
        self._detach(sequence)
        sequence.is_paused = True
        if sequence.blocks:
            self._paused_holders[request_id] = sequence
        was_dropped = sequence.ever_computed > 0 and not sequence.blocks
        self._enter(sequence, SequenceState.PREEMPTED if was_dropped else SequenceState.PAUSED)

    def resume(self, request_id: str) -> None:
        """Back into the queue: with its KV if it still has it, else to be recomputed."""
        sequence = self.sequences.get(request_id)
        if sequence is None or not sequence.is_paused:
            return
        self._detach(sequence)
        sequence.is_paused = False
        if sequence.blocks:
            self._resumed_holders[request_id] = sequence
        self._enter(sequence, SequenceState.WAITING)
        self._waiting.push(sequence)

    def swap_out(self, request_id: str) -> None:
        """Copy a paused sequence's KV to host memory in the next steps. Ignored without room there."""

    def release_kv(self, request_id: str) -> None:
        """Drop a paused sequence's KV, keep its tokens. Ignored unless paused and holding blocks."""
        sequence = self._paused_holders.get(request_id)
        if sequence is not None:
            self._drop_kv(sequence)

    def set_weight(self, request_id: str, weight: float) -> None:
        """Queue priority, high first. Raises ValueError unless finite."""
        if not math.isfinite(weight):
            raise ValueError(f"weight must be finite, got {weight}")
        sequence = self.sequences.get(request_id)
        if sequence is not None and sequence.weight != weight:
            sequence.weight = weight
            if sequence.ticket is not None:
                self._waiting.push(sequence)

    def remove(self, request_id: str) -> Sequence | None:
        """Forget a sequence, in any state; its blocks are free on return. None for an unknown id."""
        sequence = self.sequences.pop(request_id, None)
        if sequence is not None:
            self._detach(sequence)
            self._counts[sequence.state] -= 1
            self._free_blocks(sequence)
        return sequence

    def plan(self) -> StepPlan:
        """What to compute now; empty only if nothing waits and nothing is in the batch."""
        plan = StepPlan()
        self._plan_decodes(plan)
        budget = self._chunk_budget
        # One at most: another is admitted only when budget and blocks are left over, so none was cut short.
        for sequence in self._batch.values():
            if not sequence.is_decoding:
                budget -= self._plan_chunk(sequence, budget, plan)
        self._admit(plan, budget)
        return plan

    def commit(self, plan: StepPlan) -> None:
        """Everything in ``plan`` has been computed."""
        for sequence in plan.decode:
            self._computed(sequence, 1)
        for chunk in plan.prefill:
            self._computed(chunk.sequence, chunk.length)
            if chunk.is_last:
                self._enter(chunk.sequence, SequenceState.RUNNING)

    def _computed(self, sequence: Sequence, length: int) -> None:
        end = sequence.computed + length
        self.recomputed_tokens += max(0, min(end, sequence.ever_computed) - sequence.computed)
        sequence.computed = end
        sequence.ever_computed = max(end, sequence.ever_computed)

    def _plan_decodes(self, plan: StepPlan) -> None:
        """One token for every decoding member, oldest first; who is preempted for it is queued again."""
        for sequence in list(self._batch.values()):
            # The victim is always the newest, so never one that is planned already.
            while sequence.request_id in self._batch and sequence.is_decoding:
                if self._reserve(sequence, 1) == 1:
                    plan.decode.append(sequence)
                    break
                self._preempt_newest()

    def _plan_chunk(self, sequence: Sequence, budget: int, plan: StepPlan) -> int:
        """StepPlan as much prefill as budget and blocks allow; tokens planned."""
        wanted = min(budget, len(sequence.token_ids) - sequence.computed)
        length = self._reserve(sequence, wanted)
        if length:
            is_last = sequence.computed + length == len(sequence.token_ids)
            plan.prefill.append(Chunk(sequence, sequence.computed, length, is_last))
        return length

    def _admit(self, plan: StepPlan, budget: int) -> None:
        while len(self._batch) < self._max_batch and (sequence := self._waiting.head()):
            if not budget and not sequence.is_decoding:
                return
            missing = self._blocks_for(len(sequence.token_ids)) - len(sequence.blocks)
            in_batch = sum(len(member.blocks) for member in self._batch.values())
            obtainable = self.pool.total - in_batch - len(sequence.blocks)
            if missing > obtainable:
                return
            self._detach(sequence)
            self._batch[sequence.request_id] = sequence
            if sequence.is_decoding:
                self._enter(sequence, SequenceState.RUNNING)
                if self._reserve(sequence, 1):
                    plan.decode.append(sequence)
            else:
                self._enter(sequence, SequenceState.PREFILL)
                budget -= self._plan_chunk(sequence, budget, plan)

    def _reserve(self, sequence: Sequence, tokens: int) -> int:
        """Extend the block table for up to ``tokens`` more; how many then fit. Takes paused sequences' blocks."""
        missing = self._blocks_for(sequence.computed + tokens) - len(sequence.blocks)
        while missing > self.pool.free_count and (self._paused_holders or self._resumed_holders):
            holders = self._paused_holders or self._resumed_holders
            self._drop_kv(next(iter(holders.values())))
        sequence.blocks += self.pool.allocate(max(0, min(missing, self.pool.free_count)))
        return min(tokens, len(sequence.blocks) * self.block_tokens - sequence.computed)

    def _preempt_newest(self) -> None:
        victim = self._batch[next(reversed(self._batch))]
        self._detach(victim)
        self._drop_kv(victim)
        self._waiting.push(victim)

    def _drop_kv(self, sequence: Sequence) -> None:
        """Free the blocks of one outside the batch, keep its tokens and its place in the queue."""
        self._paused_holders.pop(sequence.request_id, None)
        self._resumed_holders.pop(sequence.request_id, None)
        self._free_blocks(sequence)
        self._enter(sequence, SequenceState.PREEMPTED)

    def _free_blocks(self, sequence: Sequence) -> None:
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0

    def _detach(self, sequence: Sequence) -> None:
        """Out of whatever collection it is in."""
        self._waiting.remove(sequence)
        self._batch.pop(sequence.request_id, None)
        self._paused_holders.pop(sequence.request_id, None)
        self._resumed_holders.pop(sequence.request_id, None)

    def _enter(self, sequence: Sequence, state: SequenceState) -> None:
        self._counts[sequence.state] -= 1
        sequence.state = state
        self._counts[state] += 1

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)
