"""Who gets the batch when places or blocks are short and some clients have plenty unread."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling import add, make, names, step
from sluiceway.engine.prices import Prices
from sluiceway.engine.protocol import EngineRequest, SamplingParams
from sluiceway.engine.scheduler import Scheduler
from sluiceway.engine.scripted import ScriptedEngine, scripted_answer
from sluiceway.engine.sequence import SequenceState
from sluiceway.engine.waiting_queue import Lane


def test_a_new_one_takes_the_place_of_the_one_with_most_unread_after_its_quantum() -> None:
    scheduler = make(batch=3, quantum_steps=4)
    _, b, _ = (add(scheduler, name) for name in "abc")
    step(scheduler)
    scheduler.set_weight("b", 0.25)
    scheduler.set_weight("c", 0.5)
    add(scheduler, "new")
    assert names(step(scheduler, 3).decode) == ["a", "b", "c"], "the quantum is not over"
    plan = step(scheduler)
    assert names(plan.decode) == ["a", "c"]
    assert names(plan.sampled) == ["a", "c", "new"]
    assert scheduler.displacements == 1
    assert (b.state, len(b.blocks)) == (SequenceState.WAITING, 2)
    # Back as soon as a place is free, with its KV.
    scheduler.remove("a")
    assert names(step(scheduler).decode) == ["new", "c", "b"], "the light ones last"
    assert scheduler.recomputed_tokens == 0


def test_equal_ones_are_never_displaced() -> None:
    scheduler = make(batch=1)
    add(scheduler, "old")
    step(scheduler)
    add(scheduler, "new")
    assert names(step(scheduler, 100).decode) == ["old"]
    scheduler.set_weight("old", 0.5)
    scheduler.set_weight("new", 0.5)
    assert names(step(scheduler, 100).decode) == ["old"]
    assert scheduler.displacements == 0


def test_with_plenty_unread_but_nobody_waiting_nothing_changes() -> None:
    scheduler = make(batch=2)
    for name in "ab":
        add(scheduler, name)
    step(scheduler)
    scheduler.set_weight("a", 0.0625)
    assert sorted(names(step(scheduler, 100).decode)) == ["a", "b"]


def test_one_that_runs_dry_again_comes_before_those_that_come_later() -> None:
    scheduler = make(batch=1, quantum_steps=1, aging_steps=4)
    slow = add(scheduler, "slow")
    step(scheduler, 2)
    scheduler.set_weight("slow", 0.25)
    for number in range(3):
        add(scheduler, f"new{number}")
    assert names(step(scheduler).sampled) == ["new0"]
    scheduler.remove("new0")
    assert names(step(scheduler).sampled) == ["new1"]
    scheduler.set_weight("slow", 1.0)
    scheduler.remove("new1")
    assert names(step(scheduler).sampled) == ["new2"]  # it has waited for longer
    step(scheduler, 5)
    add(scheduler, "later")
    scheduler.remove("new2")
    assert step(scheduler).decode == [slow]


@pytest.mark.parametrize("is_swap_cheaper", [False, True])
def test_for_blocks_the_displaced_kv_goes(is_swap_cheaper: bool) -> None:
    scheduler = make(blocks=7, batch=4, host_blocks=8)
    scheduler.set_prices(Prices(recompute_s=0.4, swap_s=0.2 if is_swap_cheaper else math.inf))
    slow = add(scheduler, "slow", 14)
    step(scheduler, 12)
    assert scheduler.pool.free_count == 1
    scheduler.set_weight("slow", 0.5)
    new = add(scheduler, "new", 6)
    step(scheduler, 3)
    assert new.generated >= 1
    assert scheduler.displacements == 1
    if is_swap_cheaper:
        assert (slow.state, slow.blocks, bool(slow.host_blocks)) == (SequenceState.SWAPPED, [], True)
        assert scheduler.swap_outs == 1
    else:
        assert slow.state is SequenceState.PREEMPTED
    scheduler.remove("new")
    before = slow.generated
    step(scheduler, 6)
    assert slow.generated > before
    assert (scheduler.recomputed_tokens == 0) == is_swap_cheaper


def contended(prices: Prices, *, weight: float, host_blocks: int = 8) -> Scheduler:
    """A slow reader holds nearly all blocks, and a new one wants some."""
    scheduler = make(blocks=7, batch=4, host_blocks=host_blocks)
    scheduler.set_prices(prices)
    add(scheduler, "slow", 14)
    step(scheduler, 12)
    scheduler.set_weight("slow", weight)
    add(scheduler, "new", 6)
    step(scheduler, 4)
    return scheduler


@pytest.mark.parametrize(
    ("prices", "weight", "gives_way"),
    [
        (Prices(recompute_s=0.6), 0.5, False),  # 2 s unread are less than 4 times 0.6 s
        (Prices(recompute_s=0.6), 0.25, True),
        (Prices(recompute_s=9.0, swap_s=0.6), 0.5, False),
        (Prices(recompute_s=9.0, swap_s=0.6), 0.25, True),
    ],
)
def test_nobody_is_displaced_for_blocks_at_a_loss(prices: Prices, weight: float, gives_way: bool) -> None:
    scheduler = contended(prices, weight=weight)
    assert scheduler.displacements == int(gives_way)
    assert (scheduler.sequences["new"].generated > 0) == gives_way


def test_without_room_on_the_host_the_price_is_that_of_a_recompute() -> None:
    scheduler = contended(Prices(recompute_s=9.0, swap_s=0.1), weight=0.0625, host_blocks=2)
    assert scheduler.displacements == 0


def test_what_can_be_copied_is_not_dropped_for_members_that_grow() -> None:
    scheduler = make(blocks=12, batch=2, host_blocks=12)
    scheduler.set_prices(Prices(recompute_s=9.0, swap_s=0.1))
    paused, other = add(scheduler, "paused", 14), add(scheduler, "other", 14)
    step(scheduler, 8)
    scheduler.pause("paused")
    while other.generated < 20:
        step(scheduler)
    assert paused.state is SequenceState.SWAPPED
    scheduler.remove("other")
    scheduler.resume("paused")
    step(scheduler, 4)
    assert scheduler.recomputed_tokens == 0


def test_a_request_waits_for_a_copy_rather_than_have_kv_dropped() -> None:
    scheduler = make(blocks=8, batch=2, host_blocks=8)
    scheduler.set_prices(Prices(recompute_s=9.0, swap_s=0.1))
    paused = add(scheduler, "paused", 14)
    step(scheduler, 8)
    scheduler.pause("paused")
    new = add(scheduler, "new", 18)
    step(scheduler, 5)
    assert (paused.state, new.generated > 0) == (SequenceState.SWAPPED, True)


@pytest.mark.parametrize("at", range(8, 12))
def test_displaced_in_the_step_that_would_have_begun_a_block(at: int) -> None:
    """Whatever the length, nothing but what was computed is copied away (the engine checks each block)."""
    engine = ScriptedEngine(
        step_s=0, kv_blocks=7, kv_block_tokens=4, prefill_chunk_tokens=16, kv_bytes_per_token=1, host_kv_bytes=28,
        check_kv=True,
    )  # fmt: skip
    engine._scheduler.set_prices(Prices(recompute_s=0.4, swap_s=0.2))
    sampling = SamplingParams(max_tokens=12, temperature=0)
    engine.submit(EngineRequest(request_id="slow", prompt_token_ids=(1,) * 12, sampling=sampling))
    got = [event for _ in range(at) for event in engine.step()]
    engine.set_weight("slow", 0.25)
    engine.submit(EngineRequest(request_id="new", prompt_token_ids=(2,) * 11, sampling=sampling))
    while engine.has_work():
        got += engine.step()
    for name, prompt in (("slow", (1,) * 12), ("new", (2,) * 11)):
        ids = [token_id for event in got if event.request_id == name for token_id in event.token_ids]
        assert ids == scripted_answer(prompt, 12)[0]
    statistics = engine.statistics()
    assert (statistics.displacements, statistics.swap_outs, statistics.recomputed_tokens) == (1, 1, 0)


def test_one_with_plenty_unread_displaces_nobody_for_blocks_either() -> None:
    scheduler = make(blocks=8, batch=4, quantum_steps=1)
    light = add(scheduler, "light", 10)
    step(scheduler, 6)
    scheduler.pause("light")
    scheduler.release_kv("light")
    add(scheduler, "lightest", 14)
    step(scheduler, 5)
    scheduler.set_weight("light", 0.5)
    scheduler.set_weight("lightest", 0.0625)
    scheduler.resume("light")
    assert names(step(scheduler, 3).decode) == ["lightest"]
    assert light.blocks == []
    assert scheduler.displacements == 0


@pytest.mark.parametrize(("prompt", "comes_back"), [(56, False), (52, True)])
def test_one_with_plenty_unread_stays_on_the_host_until_there_is_room_to_grow(prompt: int, comes_back: bool) -> None:
    scheduler = make(blocks=20, batch=3, host_blocks=16, chunk=64)
    scheduler.set_prices(Prices(recompute_s=9.0, swap_s=0.1))
    slow = add(scheduler, "slow", 12)
    step(scheduler, 3)
    scheduler.pause("slow")
    scheduler.swap_out("slow")
    add(scheduler, "big", prompt)
    step(scheduler, 2)
    assert (slow.state, len(slow.host_blocks)) == (SequenceState.SWAPPED, 4)
    scheduler.set_weight("slow", 0.0625)
    scheduler.resume("slow")
    step(scheduler)
    assert bool(slow.blocks) == comes_back, f"{scheduler.pool.free_count} of 20 blocks are free"


@pytest.mark.parametrize(("weight", "bound"), [(0.5, 16), (0.25, 32), (0.0625, 64)])
def test_the_longest_wait_is_bounded(weight: float, bound: int) -> None:
    """More new readers than places, for ever: one with plenty unread waits ``aging_steps`` for each halving
    of its weight, and once more as one that fell behind; then until those that came before it have had their
    turn (here at most three answers of 20 steps, two at a time) and a place is free.
    """
    scheduler = make(blocks=500, batch=2, quantum_steps=4, aging_steps=16)
    slow = add(scheduler, "slow")
    step(scheduler)
    scheduler.set_weight("slow", weight)
    gap, longest, turns = 0, 0, 0
    for number in range(1500):
        while scheduler.waiting < 3:
            add(scheduler, f"new{number}.{len(scheduler.sequences)}")
        plan = step(scheduler)
        assert len(plan.decode) + len(plan.prefill) == 2, "an idle place"
        turns += gap > 0 and slow in plan.decode
        gap = 0 if slow in plan.decode else gap + 1
        longest = max(longest, gap)
        for sequence in plan.sampled:
            if sequence is not slow and sequence.generated >= 20:
                scheduler.remove(sequence.request_id)
    assert bound + 16 <= longest <= bound + 16 + 40
    assert turns > 10
    assert slow.generated >= 4 * turns, "each turn is at least its quantum"


def test_a_new_prompts_first_chunk_does_not_wait_for_a_long_recompute() -> None:
    scheduler = make(batch=4, chunk=8)
    reader = add(scheduler, "reader", 2)
    long = add(scheduler, "long", 80)
    step(scheduler, 20)
    scheduler.pause("long")
    scheduler.release_kv("long")
    scheduler.resume("long")
    step(scheduler)
    add(scheduler, "new", 4)
    before, tokens = long.computed, reader.generated
    plan = step(scheduler)
    assert names(plan.sampled) == ["reader", "new"]
    assert long.computed - before == 4, "half of the chunk each"
    step(scheduler, 20)
    assert long.computed > 80
    assert reader.generated == tokens + 21


def test_a_burst_of_recomputes_starves_no_prompt() -> None:
    """Each of them would fill a step's chunk by itself."""
    scheduler = make(blocks=200, batch=40, chunk=8)
    for number in range(20):
        add(scheduler, str(number), 6)
        step(scheduler, 2)
        scheduler.pause(str(number))
        scheduler.release_kv(str(number))
    for number in range(20):
        scheduler.resume(str(number))
    new = add(scheduler, "new", 8)
    step(scheduler, 3)
    assert new.generated >= 1
    step(scheduler, 45)
    assert all(sequence.generated > 2 for sequence in scheduler.sequences.values())


def test_a_place_that_waits_for_prefill_is_used_and_given_back() -> None:
    """A long prompt takes all prefill, so the next has to wait; one with plenty unread decodes meanwhile."""
    scheduler = make(batch=2, chunk=8, quantum_steps=8)
    add(scheduler, "slow")
    step(scheduler)
    scheduler.pause("slow")
    scheduler.set_weight("slow", 0.25)
    add(scheduler, "long", 24)
    add(scheduler, "new", 8)
    scheduler.resume("slow")
    for _ in range(3):
        assert names(step(scheduler).decode) == ["slow"]
    assert names(step(scheduler).sampled) == ["long", "new"]


def test_blocks_that_a_recompute_was_admitted_for_are_not_given_to_a_prompt_beside_it() -> None:
    scheduler = make(blocks=10, batch=4, chunk=8, buffer_aware=False)  # or the new one would go first
    long = add(scheduler, "long", 30)
    step(scheduler, 6)
    scheduler.pause("long")
    scheduler.release_kv("long")
    scheduler.resume("long")
    new = add(scheduler, "new", 16)
    while long.state is not SequenceState.RUNNING:
        step(scheduler)
        assert new.blocks == []
    scheduler.remove("long")
    step(scheduler, 2)
    assert new.generated == 1


def test_one_that_never_ran_leaves_room_to_grow() -> None:
    scheduler = make(blocks=10, batch=4, admission_free_share=0.3)
    add(scheduler, "a", 15)
    step(scheduler, 2)
    new = add(scheduler, "new", 13)
    assert new.state is SequenceState.WAITING
    step(scheduler)
    assert (new.state, new.blocks) == (SequenceState.WAITING, [])
    scheduler.remove("a")
    big = add(scheduler, "big", 39)
    step(scheduler, 2)
    scheduler.remove("new")
    step(scheduler, 8)
    assert big.generated > 0, "alone it may have all"


def test_reclaim_none_lets_paused_ones_keep_theirs_and_others_wait() -> None:
    scheduler = make(blocks=4, batch=2, reclaim="none")
    paused = add(scheduler, "paused", 15)
    step(scheduler, 2)
    scheduler.pause("paused")
    add(scheduler, "new", 6)
    assert not scheduler.plan()
    assert not scheduler.has_work(), "nothing to do until somebody lets go: the loop may sleep"
    assert (len(paused.blocks), paused.state) == (4, SequenceState.PAUSED)
    scheduler.release_kv("paused")
    assert scheduler.has_work()
    assert names(step(scheduler).sampled) == ["new"]


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_a_weight_must_be_above_0(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        make().set_weight("a", weight)


@pytest.mark.parametrize("name", ["quantum_steps", "aging_steps", "swap_blocks_per_step", "admission_free_share"])
def test_wrong_options_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        make(**{name: -1})
    with pytest.raises(ValueError, match="reclaim"):
        make(reclaim="some")


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "pause", "resume", "release", "swap", "remove", "weight", "step", "step"]),
        st.integers(0, 7),
    ),
    max_size=80,
)


@given(OPERATIONS, st.integers(8, 14), st.integers(1, 4))
@settings(deadline=None)
def test_with_normal_readers_alone_the_schedule_is_first_come_first_served(operations, blocks, batch) -> None:
    """Whatever else happens: the same steps with and without buffer-awareness, as long as all weigh the same."""
    plans = defaultdict(list)
    for is_aware in (False, True):
        scheduler = make(blocks, batch, buffer_aware=is_aware, host_blocks=5, swap_blocks_per_step=1)
        for name, number in operations:
            request_id = str(number)
            if name == "add" and request_id not in scheduler.sequences:
                add(scheduler, request_id, 1 + number)
            elif name == "step":
                plan = step(scheduler)
                plans[is_aware].append((names(plan.decode), [(c.sequence.request_id, c.length) for c in plan.prefill]))
                for sequence in list(scheduler.sequences.values()):
                    if len(sequence.token_ids) >= 20:
                        scheduler.remove(sequence.request_id)
            elif name == "weight":
                # FCFS does not look at it.
                scheduler.set_weight(request_id, 1.0 if is_aware else 0.25)
            elif name in ("pause", "resume", "remove"):
                getattr(scheduler, name)(request_id)
            elif name in ("release", "swap"):
                getattr(scheduler, {"release": "release_kv", "swap": "swap_out"}[name])(request_id)
    assert plans[False] == plans[True]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(1, 9)), max_size=30), st.integers(1, 4))
def test_with_kv_for_all_it_is_a_plain_queue(requests: list[tuple[int, int, int]], batch: int) -> None:
    """Against a few lines that say what first come, first served means. requests: (gap, prompt, answer)."""
    scheduler = make(400, batch, chunk=6)
    arrivals: dict[int, list[int]] = defaultdict(list)
    at = 0
    for number, (gap, _, _) in enumerate(requests):
        at += gap
        arrivals[at].append(number)
    queue: list[int] = []
    running: dict[int, tuple[int, int]] = {}  # number: prompt left, answer left
    for now in range(at + 400):
        for number in arrivals[now]:
            add(scheduler, str(number), requests[number][1])
            queue.append(number)
        got = set()
        budget = 6
        for number, (prompt, answer) in list(running.items()):
            if prompt == 0:
                running[number] = (0, answer - 1)
                got.add(number)
        for number in list(running):
            prompt, answer = running[number]
            if number not in got and prompt:
                running[number] = (prompt - min(prompt, budget), answer)
                budget -= min(prompt, budget)
        while queue and len(running) < batch and budget:
            number = queue.pop(0)
            prompt = requests[number][1]
            running[number] = (prompt - min(prompt, budget), requests[number][2])
            budget -= min(prompt, budget)
        for number, (prompt, answer) in list(running.items()):
            if prompt == 0 and number not in got:
                got.add(number)
                running[number] = (0, answer - 1)
            if running[number] == (0, 0):
                del running[number]
        plan = step(scheduler)
        assert {int(name) for name in names(plan.sampled)} == got
        for sequence in plan.sampled:
            if sequence.generated == requests[int(sequence.request_id)][2]:
                scheduler.remove(sequence.request_id)
    assert not scheduler.sequences
    assert not queue


def test_a_growing_reader_takes_blocks_from_the_one_with_plenty_unread_not_from_the_newest() -> None:
    scheduler = make(blocks=3, batch=3)
    light, _, newest = (add(scheduler, name, 2) for name in ("light", "old", "newest"))
    step(scheduler, 2)
    scheduler.set_weight("light", 0.5)
    assert names(step(scheduler, 2).decode) == ["old"], "only one block was free to take"
    assert light.state is SequenceState.PREEMPTED
    assert newest.state is not SequenceState.RUNNING or newest.blocks


def test_one_in_line_that_loses_its_kv_waits_as_one_to_be_recomputed() -> None:
    scheduler = make(blocks=4, batch=1, chunk=4)
    waiting = add(scheduler, "waiting", 2)
    step(scheduler, 2)
    scheduler.pause("waiting")
    add(scheduler, "reader", 2)
    step(scheduler)
    scheduler.resume("waiting")
    assert waiting.lane in (Lane.READY, Lane.LATE_READY)
    step(scheduler, 12)
    assert (waiting.blocks, waiting.state) == ([], SequenceState.PREEMPTED)
    assert waiting.lane in (Lane.COLD, Lane.LATE_COLD)


def test_who_loses_blocks_first_follows_the_weight_while_waiting() -> None:
    scheduler = make(blocks=4, batch=1)
    first, second = (add(scheduler, name, 2) for name in ("first", "second"))
    step(scheduler)
    scheduler.pause("first")
    step(scheduler)
    scheduler.pause("second")
    add(scheduler, "reader", 2)
    step(scheduler)
    scheduler.resume("first")
    scheduler.resume("second")
    scheduler.set_weight("second", 0.5)
    step(scheduler, 7)
    assert (bool(first.blocks), second.blocks) == (True, [])
