"""A scheduler without an engine, for tests: adds, steps and checks what is planned."""

from __future__ import annotations

from sluiceway.engine.kv_pool import BlockPool
from sluiceway.engine.protocol import EngineRequest
from sluiceway.engine.scheduler import Scheduler, StepPlan
from sluiceway.engine.sequence import Sequence

BLOCK = 4


def make(blocks: int = 64, batch: int = 2, chunk: int = 8, **options) -> Scheduler:
    return Scheduler(
        BlockPool(blocks), block_tokens=BLOCK, max_batch_streams=batch, prefill_chunk_tokens=chunk, **options
    )


def add(scheduler: Scheduler, request_id: str, prompt: int = 2) -> Sequence:
    ids = tuple(range(prompt))
    request = EngineRequest(request_id=request_id, prompt_token_ids=ids)
    arrival = max((sequence.arrival for sequence in scheduler.sequences.values()), default=0) + 1
    sequence = Sequence(request=request, arrival=arrival, token_ids=list(ids))
    scheduler.add(sequence)
    return sequence


def step(scheduler: Scheduler, count: int = 1) -> StepPlan:
    """The last of ``count`` steps."""
    plan = StepPlan()
    for _ in range(count):
        plan = scheduler.plan()
        for sequence in plan.decode:
            assert len(sequence.blocks) * BLOCK > sequence.computed
        scheduler.commit(plan)
        for sequence in plan.sampled:
            sequence.append(0)
    return plan


def names(sequences) -> list[str]:
    return [sequence.request_id for sequence in sequences]
