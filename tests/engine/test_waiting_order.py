"""Who gets the next place: people who read before those who did not read when they could; nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.engine.kv_pool import BlockPool
from sluiceway.engine.protocol import EngineRequest
from sluiceway.engine.scheduler import Scheduler
from sluiceway.engine.sequence import Sequence
from sluiceway.engine.waiting_queue import Lane, WaitingQueue

AGING = 10


def sequence(name: str, *, arrival: int = 0, began: bool = True, ready: bool = True) -> Sequence:
    one = Sequence(request=EngineRequest(request_id=name, prompt_token_ids=(1,)), arrival=arrival, token_ids=[1, 2])
    if began:
        one.append(3)
    one.ever_computed = 2 if began else 0
    one.computed = 2 if began and ready else 0
    return one


def lagging(name: str, weight: float = 1.0, **kwargs) -> Sequence:
    one = sequence(name, **kwargs)
    one.weight, one.has_lagged = weight, True
    return one


def order(queue: WaitingQueue, step: int) -> list[str]:
    """Take everybody out at ``step``."""
    names = []
    while (head := queue.head()) is not None:
        names.append(head.request_id)
        queue.remove(head)
        queue.age(step)
    return names


def test_started_ones_that_kept_up_go_first_by_arrival_then_new_ones_by_arrival():
    queue = WaitingQueue(AGING)
    queue.push(sequence("new", arrival=0, began=False), 0)
    queue.push(sequence("newer", arrival=3, began=False), 1)
    queue.push(sequence("started second", arrival=2, ready=False), 5)
    queue.push(sequence("started first", arrival=1), 6)
    assert order(queue, 6) == ["started first", "started second", "new", "newer"]


def test_one_that_fell_behind_does_not_hold_up_a_new_one():
    queue = WaitingQueue(AGING)
    queue.push(lagging("late", arrival=0), 0)
    queue.push(sequence("new", arrival=1, began=False), AGING - 1)
    queue.push(sequence("much newer", arrival=2, began=False), AGING + 1)
    assert order(queue, AGING + 1) == ["new", "late", "much newer"]


def test_a_late_one_keeps_its_turn_when_it_loses_its_kv_but_not_from_one_wait_to_the_next():
    queue = WaitingQueue(AGING)
    late = lagging("late", arrival=0)
    queue.push(late, 0)
    late.computed = 0
    queue.push(late, 7)
    assert late.lane is Lane.LATE_COLD
    queue.push(sequence("new", arrival=1, began=False), AGING + 1)
    assert queue.head() is late
    queue.remove(late)
    queue.push(late, AGING + 2)
    assert order(queue, AGING + 2) == ["new", "late"]


def test_a_light_one_waits_behind_everybody_until_its_cushion_is_gone():
    queue = WaitingQueue(AGING)
    light = lagging("light", 0.5, arrival=0)
    queue.push(light, 0)
    queue.push(sequence("new", arrival=1, began=False), 1)
    assert order(queue, 1) == ["new", "light"]
    queue.push(light, 2)
    light.weight = 1.0
    queue.push(light, 5)
    assert light.lane is Lane.LATE_READY
    assert light.waits_since == 5  # it has waited for a token since then, not since it was displaced


def test_while_a_new_one_is_next_and_finds_no_prefill_budget_only_a_light_one_takes_its_place():
    queue = WaitingQueue(AGING)
    queue.push(sequence("new", began=False), 0)
    queue.push(lagging("late"), 0)
    assert queue.head(new=False) is None
    queue.push(lagging("light", 0.25), 0)
    assert queue.head(new=False).request_id == "light"  # gives it back
    queue.push(sequence("started", arrival=1), 0)
    assert queue.head(new=False).request_id == "started"


@given(
    weight=st.sampled_from([0.5, 0.25, 1 / 8, 1 / 16]),
    ready=st.booleans(),
    new_ones=st.lists(st.integers(0, 3), max_size=100),
)
def test_a_light_one_is_passed_over_for_a_bounded_time_whoever_comes(weight, ready, new_ones):
    """Five times aging_steps after it was queued, only those that were there by then are before it."""
    queue = WaitingQueue(AGING)
    light = lagging("light", weight, ready=ready)
    queue.push(light, 0)
    arrival = 0
    for step, count in enumerate(new_ones):
        queue.age(step)
        for _ in range(count):
            arrival += 1
            queue.push(sequence(f"new {step}", arrival=arrival, began=False), step)
    queue.age(len(new_ones))
    names = order(queue, max(len(new_ones), 5 * AGING))
    before = names[: names.index("light")]
    assert all(int(name.split()[1]) <= 5 * AGING for name in before)


def test_only_a_scheduler_that_heeds_what_is_unread_knows_who_fell_behind():
    for buffer_aware in (True, False):
        scheduler = Scheduler(
            BlockPool(8), block_tokens=4, max_batch_streams=1, prefill_chunk_tokens=8, buffer_aware=buffer_aware
        )
        slow = sequence("slow", began=False)
        scheduler.add(slow)
        scheduler.commit(scheduler.plan())
        slow.append(4)
        scheduler.pause("slow")
        scheduler.add(sequence("other", arrival=1, began=False))
        scheduler.commit(scheduler.plan())
        scheduler.sequences["other"].append(4)
        scheduler.add(sequence("new", arrival=2, began=False))
        scheduler.resume("slow")
        scheduler.remove("other")
        plan = scheduler.plan()
        next_ones = [chunk.sequence.request_id for chunk in plan.prefill] + [one.request_id for one in plan.decode]
        assert next_ones == (["new"] if buffer_aware else ["slow"])
