"""What the next step computes: who decodes, who prefills how far, who comes into the batch for whom."""

from __future__ import annotations

from sluiceway.engine.places import Places
from sluiceway.engine.prices import Prices
from sluiceway.engine.sequence import Sequence, SequenceState
from sluiceway.engine.step_plan import Chunk, StepPlan


class Planner:
    """Fills one StepPlan after the other.

    Decodes come first, every member's, whatever is prefilled. Of the chunk budget a recompute leaves
    half to prompts that wait for their first token, and they leave half to it.
    """

    def __init__(
        self,
        places: Places,
        *,
        block_tokens: int,
        max_batch_streams: int,
        prefill_chunk_tokens: int,
        kept_free_blocks: int,
        quantum_steps: int,
    ) -> None:
        """kept_free_blocks: what one that never ran must leave free. quantum_steps: before a displacement."""
        self.displacements = 0
        self.prices = Prices()
        self._places = places
        self._kv = places.kv
        self._batch = places.batch
        self._waiting = places.waiting
        self._block_tokens = block_tokens
        self._max_batch = max_batch_streams
        self._chunk_budget = prefill_chunk_tokens
        self._kept_free = kept_free_blocks
        self._quantum_steps = quantum_steps

    def plan(self) -> StepPlan:
        places = self._places
        places.step += 1
        self._waiting.age(places.step)
        plan = StepPlan()
        self._decode(plan)
        self._prefill(plan)
        while self._batch and not plan and not self._kv.swap.is_busy:
            # Only prefills are left in the batch and none gets a block: the newest makes room.
            places.preempt(self._batch.newest())
            self._prefill(plan)
        if self.prices.prefers_swap:
            # Members that grow take what is free, and would drop what can be copied out in time.
            self._kv.swap_out_held(self._growth - self._kv.pool.free_count - self._kv.swap.leaving_blocks)
        self._kv.swap.plan(plan)  # last: nothing is cancelled after it
        return plan

    @property
    def _growth(self) -> int:
        """Blocks that members may begin within half a block's steps."""
        return (len(self._batch) + 1) // 2

    def _decode(self, plan: StepPlan) -> None:
        """One token for every decoding member, oldest first, those with plenty unread last."""
        running, size, decode = SequenceState.RUNNING, self._block_tokens, plan.decode
        light: list[Sequence] = []
        for sequence in list(self._batch.members.values()):
            if sequence.state is not running:  # prefilling, or preempted a moment ago
                continue
            if sequence.weight < 1:
                light.append(sequence)
            elif sequence.computed < len(sequence.blocks) * size or self._grow(sequence):
                decode.append(sequence)
        for sequence in light:
            if sequence.state is running and (sequence.computed < len(sequence.blocks) * size or self._grow(sequence)):
                decode.append(sequence)

    def _grow(self, sequence: Sequence) -> bool:
        """A block for one more token, if need be another member's; False if it was preempted itself."""
        while self._kv.reserve(sequence, 1) < 1:
            # The newest (light) member comes last in _decode's order, so the victim is never planned already.
            victim = self._batch.newest()
            self._places.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _prefill(self, plan: StepPlan) -> None:
        prefilling = self._batch.prefilling
        budget = self._chunk_budget
        recompute = next((sequence for sequence in prefilling.values() if sequence.recomputes), None)
        kept = 0
        if recompute is not None:
            kept = min(len(recompute.token_ids) - recompute.computed, budget - budget // 2)
        budget -= kept
        for sequence in list(prefilling.values()):
            if sequence is not recompute:
                budget -= self._chunk(sequence, budget, plan)
        budget = self._admit(plan, budget, cold=recompute is None)
        if recompute is not None and recompute in self._batch:
            budget += kept
            budget -= self._chunk(recompute, budget, plan)
            if budget:
                self._admit(plan, budget, cold=True)

    def _chunk(self, sequence: Sequence, budget: int, plan: StepPlan) -> int:
        """Plan as much prefill as budget and blocks allow; tokens planned."""
        wanted = min(budget, len(sequence.token_ids) - sequence.computed)
        if not wanted:
            return 0
        length = self._kv.reserve(sequence, wanted)
        if length:
            is_last = sequence.computed + length == len(sequence.token_ids)
            plan.prefill.append(Chunk(sequence, sequence.computed, length, is_last))
        return length

    def _admit(self, plan: StepPlan, budget: int, *, cold: bool) -> int:
        """Take in whoever is next while there are places, blocks and, for prefill, budget; what is left of it."""
        while True:
            sequence = self._waiting.head(cold=cold and budget > 0, new=budget > 0)
            if sequence is None or not self._has_blocks(sequence, plan) or not self._has_place(sequence, plan):
                return budget
            self._places.take_out(sequence)
            if sequence.host_blocks:
                self._kv.start_swap_in(sequence)
                self._places.enter(sequence, SequenceState.WAITING)
                continue
            self._batch.add(sequence, self._places.step)
            if sequence.weight < 1 and not sequence.is_aged and self._waiting.urgent:
                # A stopgap while others wait for prefill budget: it has no quantum to lose.
                sequence.admitted_at -= self._quantum_steps
            if sequence.is_decoding:
                self._places.enter(sequence, SequenceState.RUNNING)
                if self._kv.reserve(sequence, 1):
                    plan.decode.append(sequence)
                continue
            self._places.enter(sequence, SequenceState.PREFILL)
            sequence.recomputes = sequence.computed < sequence.ever_computed
            limit = budget
            if sequence.recomputes and self._waiting.has_new:
                limit = budget - budget // 2
            budget -= self._chunk(sequence, limit, plan)
            cold = cold and not (sequence.recomputes and sequence.computed + limit < len(sequence.token_ids))

    def _has_blocks(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Whether all its tokens find blocks; one of full weight may have lighter members displaced for them."""
        kv, batch = self._kv, self._batch
        is_new = sequence.ever_computed == 0
        is_alone = not batch and not kv.swap.ins
        is_urgent = sequence.weight >= 1 or sequence.is_aged
        missing = kv.blocks_for(len(sequence.token_ids)) - len(sequence.blocks)
        if is_new and not is_alone:
            missing += self._kept_free
        if sequence.host_blocks and not (is_urgent or is_alone):
            # Or it would be copied out again as soon as members grow, or the next request comes.
            missing += max(2 * self._growth, kv.pool.total // 16)
        room = kv.room(sequence, deferred=is_urgent or is_alone, resumed=not is_new or is_alone)
        for member in batch.prefilling.values():  # blocks that they were admitted for
            room -= kv.blocks_for(len(member.token_ids)) - len(member.blocks)
        if (is_urgent or is_alone) and self.prices.prefers_swap:
            without = room - kv.held_blocks(sequence)
            kv.swap_out_held(missing - without - kv.swap.leaving_blocks, sequence)
            if without < missing <= without + kv.swap.leaving_blocks:
                return False  # a step or two later they are free, and nothing has to be computed again
        if missing <= room:
            return True
        if sequence.weight < 1 or missing <= room + kv.swap.leaving_blocks:
            return False
        victims = self._worth_displacing()
        if missing > room + kv.swap.leaving_blocks + sum(len(victim.blocks) for victim in victims):
            return False
        for victim in victims:
            blocks = len(victim.blocks)
            self._displace(victim, plan)
            if not (self.prices.prefers_swap and kv.start_swap_out(victim)):
                room += blocks
            if missing <= room + kv.swap.leaving_blocks:
                break
        return missing <= room

    def _worth_displacing(self) -> list[Sequence]:
        """Displaceable members whose blocks spare others more than it costs to bring them back."""
        host_room = self._kv.swap.host_free if self.prices.prefers_swap else 0
        worth = []
        for victim in self._displaceable():
            on_host = len(victim.blocks) <= host_room
            if self.prices.pays(victim.weight, on_host=on_host):
                worth.append(victim)
                host_room -= len(victim.blocks) if on_host else 0
        return worth

    def _has_place(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Whether the batch has room; one of full weight may have a lighter member displaced."""
        if len(self._batch) + len(self._kv.swap.ins) < self._max_batch:
            return True
        victims = self._displaceable() if sequence.weight >= 1 else []
        if victims:
            self._displace(victims[0], plan)
        return bool(victims)

    def _displaceable(self) -> list[Sequence]:
        return self._batch.displaceable(self._places.step - self._quantum_steps)

    def _displace(self, victim: Sequence, plan: StepPlan) -> None:
        """Back in line with its KV, which others may take."""
        self.displacements += 1
        if victim in plan.decode:
            plan.decode.remove(victim)
            self._kv.trim(victim)  # the block that it was to write to
        self._places.take_out(victim)
        self._places.put_in_line(victim)
