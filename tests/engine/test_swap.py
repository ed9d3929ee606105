"""KV to the host and back, and every call that can come while it is on its way."""

from __future__ import annotations

import pytest

from engine.scheduling import add, make, names, step
from sluiceway.engine.kv_pool import host_block_count
from sluiceway.engine.scheduler import Scheduler
from sluiceway.engine.scripted import ScriptedEngine
from sluiceway.engine.sequence import Sequence, SequenceState


def paused(host_blocks: int = 8, **options) -> tuple[Scheduler, Sequence]:
    """One paused sequence with 4 blocks; a block is copied in each step."""
    scheduler = make(blocks=8, host_blocks=host_blocks, swap_blocks_per_step=1, **options)
    sequence = add(scheduler, "a", 8)
    step(scheduler, 7)
    scheduler.pause("a")
    assert len(sequence.blocks) == 4
    return scheduler, sequence


def held(scheduler: Scheduler) -> tuple[int, int]:
    return scheduler.pool.used_count, scheduler.host_pool.used_count


def test_out_and_in_moves_blocks_and_recomputes_nothing() -> None:
    scheduler, sequence = paused()
    scheduler.swap_out("a")
    assert held(scheduler) == (4, 4)
    for copied in range(4):
        assert scheduler.has_work()
        plan = scheduler.plan()
        assert [copy.device_blocks for copy in plan.swap_out] == [sequence.blocks[copied : copied + 1]]
        assert [copy.host_blocks for copy in plan.swap_out] == [sequence.host_blocks[copied : copied + 1]]
        scheduler.commit(plan)
    assert (held(scheduler), sequence.state, scheduler.swap_outs) == ((0, 4), SequenceState.SWAPPED, 1)
    assert not scheduler.has_work()
    scheduler.resume("a")
    for _ in range(4):
        plan = step(scheduler)
        assert (len(plan.swap_in), plan.decode) == (1, [])
    assert (held(scheduler), scheduler.swap_ins) == ((4, 0), 1)
    assert names(step(scheduler).decode) == ["a"]
    assert scheduler.recomputed_tokens == 0


@pytest.mark.parametrize("at", [0, 1, 3, 4])
@pytest.mark.parametrize("call", ["remove", "release_kv", "resume", "pause", "swap_out"])
def test_any_call_in_the_middle_of_a_swap_out(call: str, at: int) -> None:
    scheduler, _ = paused()
    scheduler.swap_out("a")
    step(scheduler, at)
    getattr(scheduler, call)("a")
    if call in ("remove", "release_kv"):
        assert held(scheduler) == (0, 0)
    elif call == "resume" and at < 4:
        assert held(scheduler) == (4, 0), "its KV never left"
        assert names(step(scheduler).decode) == ["a"]
    else:
        step(scheduler, 4)
        assert held(scheduler) == ((4, 0) if call == "resume" else (0, 4))


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("call", ["remove", "pause", "resume", "release_kv", "swap_out"])
def test_any_call_in_the_middle_of_a_swap_in(call: str, at: int) -> None:
    scheduler, sequence = paused()
    scheduler.swap_out("a")
    step(scheduler, 4)
    scheduler.resume("a")
    step(scheduler, at)
    getattr(scheduler, call)("a")
    if call == "remove":
        assert held(scheduler) == (0, 0)
    elif call == "pause":
        assert (held(scheduler), sequence.state) == ((0, 4), SequenceState.SWAPPED)
        scheduler.release_kv("a")
        assert held(scheduler) == (0, 0)
    else:
        step(scheduler, 5 - at)
        assert sequence.state is SequenceState.RUNNING
    assert scheduler.recomputed_tokens == 0


def test_without_room_on_the_host_nothing_happens() -> None:
    for room in (0, 3):
        scheduler, sequence = paused(host_blocks=room)
        scheduler.swap_out("a")
        assert not scheduler.has_work()
        assert (len(sequence.blocks), sequence.host_blocks) == (4, [])


def test_only_paused_ones_are_swapped_out() -> None:
    scheduler, _ = paused()
    scheduler.resume("a")
    scheduler.swap_out("a")
    scheduler.swap_out("unknown")
    assert scheduler.host_pool.used_count == 0


def test_copies_run_beside_decoding_and_free_blocks_for_one_that_waits() -> None:
    scheduler, _ = paused()
    add(scheduler, "reader", 4)
    step(scheduler)
    scheduler.swap_out("a")
    plan = step(scheduler)
    assert (names(plan.decode), len(plan.swap_out)) == (["reader"], 1)
    big = add(scheduler, "big", 20)
    step(scheduler, 8)
    assert big.generated > 0


def test_blocks_needed_now_are_taken_from_kv_on_its_way_in_and_its_copy_stays() -> None:
    scheduler, sequence = paused()
    scheduler.swap_out("a")
    step(scheduler, 4)
    reader = add(scheduler, "reader", 14)
    step(scheduler, 3)
    assert len(reader.blocks) == 4
    scheduler.resume("a")
    step(scheduler)
    assert scheduler.pool.free_count == 0
    step(scheduler, 1)
    assert (sequence.blocks, len(sequence.host_blocks)) == ([], 4)
    assert reader in scheduler.sequences.values()
    scheduler.remove("reader")
    step(scheduler, 5)
    assert sequence.state is SequenceState.RUNNING
    assert scheduler.recomputed_tokens == 0


def test_a_host_pool_too_small_for_a_block_is_refused_and_0_is_none() -> None:
    assert host_block_count(0, 1000) == 0
    assert host_block_count(2999, 1000) == 2
    with pytest.raises(ValueError, match="host_kv_bytes is 999, less than one KV block of 1000 bytes"):
        host_block_count(999, 1000)
    with pytest.raises(ValueError, match="host_kv_bytes"):
        ScriptedEngine(kv_block_tokens=16, kv_bytes_per_token=1024, host_kv_bytes=16383)
    with pytest.raises(ValueError, match="kv_bytes_per_token"):
        ScriptedEngine(kv_bytes_per_token=0)
