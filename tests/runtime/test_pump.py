from __future__ import annotations

import threading
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.runtime.pump import JobKind, Pump

HANG_S = 20  # only to end a broken test


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Gate:
    """A job that hangs until it is opened."""

    def __init__(self):
        self.reached, self._open = threading.Event(), threading.Event()

    def __call__(self):
        self.reached.set()
        assert self._open.wait(HANG_S)

    def open(self):
        self._open.set()


def fail(detail):
    raise AssertionError(detail)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pump(clock):
    pump = Pump(workers=2, max_blocked=3, slow_send_s=0.1, clock=clock, on_fatal=fail)
    pump.start()
    yield pump
    clock.now = 0.0
    assert pump.stop(HANG_S)


def done(pump, key="done"):
    """Whether a job of a fresh key gets its turn."""
    event = threading.Event()
    pump.submit(key, JobKind.SEND, event.set)
    return event


@settings(max_examples=30)
@given(st.lists(st.sampled_from("abcd"), max_size=60), st.integers(1, 6))
def test_a_key_has_one_thread_at_a_time_and_its_order(keys, workers):
    pump = Pump(workers=workers, max_blocked=1, slow_send_s=99, clock=Clock(), on_fatal=fail)
    busy = defaultdict(threading.Lock)
    seen = defaultdict(list)
    overlaps = []

    def job(key, number):
        if not busy[key].acquire(blocking=False):
            overlaps.append((key, number))
            return
        seen[key].append(number)
        threading.Event().wait(0.0001)  # lets another thread run, if it may
        busy[key].release()

    for key in "abcd":
        busy[key]
    pump.start()
    for number, key in enumerate(keys):
        pump.submit(key, JobKind.SEND, lambda key=key, number=number: job(key, number))
    assert pump.stop(HANG_S)
    assert overlaps == []
    assert seen == {key: [n for n, k in enumerate(keys) if k == key] for key in set(keys)}
    assert pump.statistics().sends == len(keys)


def test_keys_run_beside_each_other(pump):
    gate = Gate()
    pump.submit("stuck", JobKind.SEND, gate)
    assert gate.reached.wait(HANG_S)
    assert done(pump).wait(HANG_S)
    gate.open()


def test_hanging_sends_are_replaced_up_to_the_cap(pump, clock):
    gates = [Gate() for _ in range(5)]
    for number, gate in enumerate(gates[:2]):
        pump.submit(f"stuck-{number}", JobKind.SEND, gate)
        assert gate.reached.wait(HANG_S)
    waiting = done(pump)
    pump.tend()
    assert pump.statistics().threads == 2  # not hanging yet: only busy
    clock.now = 1.0
    pump.tend()
    assert waiting.wait(HANG_S)
    assert pump.statistics().blocked_now == 2
    for number, gate in enumerate(gates[2:], start=2):
        pump.submit(f"stuck-{number}", JobKind.SEND, gate)
        pump.tend()
        assert gate.reached.wait(HANG_S)
        clock.now += 1.0
    blocked = done(pump, "no thread is left for it")
    pump.tend()
    statistics = pump.statistics()
    assert (statistics.threads, statistics.blocked_now, statistics.waiting_keys) == (5, 5, 1)
    for gate in gates:
        gate.open()
    assert blocked.wait(HANG_S)


def test_replacements_leave_when_the_threads_are_back(pump, clock):
    gates = [Gate(), Gate()]
    for number, gate in enumerate(gates):
        pump.submit(f"stuck-{number}", JobKind.SEND, gate)
        assert gate.reached.wait(HANG_S)
    clock.now = 1.0
    waiting = done(pump)
    pump.tend()
    assert waiting.wait(HANG_S)
    for gate in gates:
        gate.open()
    for number in range(20):
        assert done(pump, f"more-{number}").wait(HANG_S)
    assert pump.stop(HANG_S)
    assert pump.statistics().slow_sends == 2
    assert pump.statistics().threads == 0


def test_polls_and_sends_are_counted_apart(pump):
    event = threading.Event()
    pump.submit("a", JobKind.POLL, lambda: None)
    pump.submit("a", JobKind.SEND, event.set)
    assert event.wait(HANG_S)
    pump.count_failed_send()
    assert pump.stop(HANG_S)
    statistics = pump.statistics()
    assert (statistics.sends, statistics.cancel_polls, statistics.failed_sends) == (1, 1, 1)


def test_stop_does_what_was_submitted_and_takes_no_more(pump):
    numbers = []
    for number in range(50):
        pump.submit("a", JobKind.SEND, lambda number=number: numbers.append(number))
    assert pump.stop(HANG_S)
    pump.submit("a", JobKind.SEND, lambda: numbers.append("late"))
    assert numbers == list(range(50))


def test_a_job_that_raises_is_a_defect_and_is_told():
    told = threading.Event()
    pump = Pump(workers=1, max_blocked=1, slow_send_s=1, clock=Clock(), on_fatal=lambda detail: told.set())
    pump.start()
    pump.submit("a", JobKind.SEND, lambda: 1 / 0)
    assert told.wait(HANG_S)
    assert pump.stop(HANG_S)
