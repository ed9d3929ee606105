from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.engine.kv_pool import BlockPool
from sluiceway.engine.protocol import EngineRequest
from sluiceway.engine.scheduler import Scheduler, StepPlan
from sluiceway.engine.sequence import Sequence, SequenceState

BLOCK = 4
CHUNK = 6


def make(blocks: int = 8, batch: int = 4, chunk: int = CHUNK) -> Scheduler:
    return Scheduler(BlockPool(blocks), block_tokens=BLOCK, max_batch_streams=batch, prefill_chunk_tokens=chunk)


def add(scheduler: Scheduler, request_id: str, prompt: int, kind: type[Sequence] = Sequence) -> Sequence:
    ids = tuple(range(prompt))
    request = EngineRequest(request_id=request_id, prompt_token_ids=ids)
    sequence = kind(request=request, arrival=len(scheduler.sequences), token_ids=list(ids))
    scheduler.add(sequence)
    return sequence


def step(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.plan()
    assert sum(chunk.length for chunk in plan.prefill) <= CHUNK
    for chunk in plan.prefill:
        assert chunk.length > 0
        assert chunk.start == chunk.sequence.computed
        assert len(chunk.sequence.blocks) * BLOCK >= chunk.start + chunk.length
    for sequence in plan.decode:
        assert len(sequence.blocks) * BLOCK > sequence.computed
    planned = [chunk.sequence.request_id for chunk in plan.prefill] + [s.request_id for s in plan.decode]
    assert len(planned) == len(set(planned))
    scheduler.commit(plan)
    for sequence in plan.sampled:
        assert sequence.computed == len(sequence.token_ids)
        sequence.append(len(sequence.token_ids))
    return plan


def test_long_prompt_is_cut_and_does_not_hold_up_decodes() -> None:
    scheduler = make()
    first = add(scheduler, "first", 3)
    step(scheduler)
    long = add(scheduler, "long", 14)
    lengths = []
    while long.generated == 0:
        plan = step(scheduler)
        assert plan.decode == [first]
        lengths += [chunk.length for chunk in plan.prefill]
    assert lengths == [6, 6, 2]
    assert first.generated == 4


def test_out_of_blocks_preempts_the_newest_and_it_comes_back() -> None:
    scheduler = make(blocks=2)
    old = add(scheduler, "old", 3)
    new = add(scheduler, "new", 3)
    step(scheduler)
    step(scheduler)
    plan = step(scheduler)
    assert plan.decode == [old]
    assert new.state is SequenceState.PREEMPTED
    assert new.blocks == []
    assert new.generated == 2
    scheduler.remove("old")
    step(scheduler)
    assert new.state is SequenceState.RUNNING
    assert new.generated == 3
    assert scheduler.recomputed_tokens == 4


def test_longest_paused_loses_its_kv_before_a_running_one_is_preempted() -> None:
    scheduler = make(blocks=3)
    sequences = [add(scheduler, name, 2) for name in "abc"]
    step(scheduler)
    scheduler.pause("b")
    scheduler.pause("a")
    for _ in range(3):
        step(scheduler)
    assert [s.state.value for s in sequences] == ["paused", "preempted", "running"]


def test_a_resumed_one_that_waits_for_a_slot_loses_its_kv_after_the_paused() -> None:
    scheduler = make(blocks=3, batch=1)
    sequences = []
    for name in "ab":
        sequences.append(add(scheduler, name, 2))
        step(scheduler)
        scheduler.pause(name)
    sequences.append(add(scheduler, "c", 2))
    step(scheduler)
    scheduler.resume("b")
    for _ in range(3):
        step(scheduler)
    assert [s.state.value for s in sequences] == ["preempted", "waiting", "running"]
    assert len(sequences[1].blocks) == 1


def test_paused_keeps_kv_until_released_and_recomputes_after() -> None:
    scheduler = make()
    sequence = add(scheduler, "a", 5)
    scheduler.release_kv("a")
    step(scheduler)
    scheduler.release_kv("a")
    assert len(sequence.blocks) == 2, "only a paused request may be released"
    scheduler.pause("a")
    assert not scheduler.has_work()
    scheduler.resume("a")
    assert step(scheduler).decode == [sequence]
    assert scheduler.recomputed_tokens == 0
    scheduler.pause("a")
    scheduler.release_kv("a")
    assert scheduler.pool.used_count == 0
    scheduler.resume("a")
    step(scheduler)
    step(scheduler)
    assert scheduler.recomputed_tokens == 6
    assert sequence.token_ids == list(range(len(sequence.token_ids)))


def test_higher_weight_is_admitted_first() -> None:
    scheduler = make(batch=1)
    for name in "abc":
        add(scheduler, name, 2)
    scheduler.set_weight("c", 2.0)
    assert [chunk.sequence.request_id for chunk in step(scheduler).prefill] == ["c"]
    scheduler.remove("c")
    assert [chunk.sequence.request_id for chunk in step(scheduler).prefill] == ["a"]


def test_what_never_fits_is_refused_and_names_the_blocks() -> None:
    scheduler = make(blocks=2)
    with pytest.raises(ValueError, match=r"needs 3 KV blocks.*kv_blocks 2"):
        add(scheduler, "a", 9)
    assert not scheduler.has_work()


class Counted(Sequence):
    """Counts every look at it."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        Counted.looks += 1
        return super().__getattribute__(name)


def test_a_step_never_looks_at_paused_sequences() -> None:
    scheduler = make(blocks=1100, batch=4)
    for number in range(1000):
        add(scheduler, f"paused{number}", 1, Counted)
        step(scheduler)
        scheduler.pause(f"paused{number}")
    add(scheduler, "running", 3)
    Counted.looks = 0
    for _ in range(50):
        assert step(scheduler)
    assert Counted.looks == 0
    assert scheduler.count(SequenceState.PAUSED) == 1000


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "pause", "resume", "release", "remove", "weight", "step"]), st.integers(0, 5)),
    max_size=80,
)


@given(OPERATIONS, st.integers(5, 9), st.integers(1, 4))
@settings(deadline=None)
def test_any_interleaving_leaks_nothing_and_ends(operations: list[tuple[str, int]], blocks: int, batch: int) -> None:
    scheduler = make(blocks, batch)
    limit = 18  # tokens at most in one sequence: 5 blocks

    def end_the_long() -> None:
        for sequence in list(scheduler.sequences.values()):
            if len(sequence.token_ids) >= limit:
                scheduler.remove(sequence.request_id)

    for name, number in operations:
        request_id = str(number)
        if name == "add" and request_id not in scheduler.sequences:
            add(scheduler, request_id, 1 + 3 * number)
        elif name == "step":
            had_work = scheduler.has_work()
            assert bool(step(scheduler)) == had_work
            end_the_long()
        elif name == "weight":
            scheduler.set_weight(request_id, (0.0625, 0.25, 0.5, 1.0, 1.0, 4.0)[number])
        elif name in ("pause", "resume", "remove"):
            getattr(scheduler, name)(request_id)
        elif name == "release":
            scheduler.release_kv(request_id)
        held = [block for s in scheduler.sequences.values() for block in s.blocks]
        assert len(set(held)) == len(held) == scheduler.pool.used_count
        states = [s.state for s in scheduler.sequences.values()]
        assert all(scheduler.count(state) == states.count(state) for state in SequenceState)
        assert states.count(SequenceState.PREFILL) <= 2, "a prompt and a recompute"
        assert states.count(SequenceState.RUNNING) + states.count(SequenceState.PREFILL) <= batch
    for request_id in list(scheduler.sequences):
        scheduler.resume(request_id)
    for _ in range(400):
        if not scheduler.has_work():
            break
        step(scheduler)
        end_the_long()
    assert not scheduler.sequences
    assert scheduler.pool.used_count == 0
