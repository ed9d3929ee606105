from __future__ import annotations

import itertools
import threading

import pytest

from sluiceway.core.events import FinishReason
from sluiceway.engine.protocol import EngineRequest, SamplingParams
from sluiceway.engine.scripted import ScriptedEngine, scripted_answer
from sluiceway.runtime.engine_loop import EngineLoop

HANG_S = 20


class Collector:
    def __init__(self):
        self.events, self.times, self.ended, self.dead = [], [], threading.Event(), threading.Event()
        self.loads, self.idle = [], threading.Event()
        self.detail = ""

    def tokens(self, events, at, load):
        self.events += events
        self.times.append(at)
        self.loads += [] if load is None else [load]
        if load is not None and load.batch_streams == 0 and load.kv_blocks_free < load.kv_blocks_total:
            self.idle.set()
        if any(event.finish_reason is not None for event in events):
            self.ended.set()

    def death(self, detail):
        self.detail = detail
        self.dead.set()


def loop_over(engine, collector):
    ticks = itertools.count()
    loop = EngineLoop(engine, clock=lambda: float(next(ticks)), on_tokens=collector.tokens, on_death=collector.death)
    loop.start()
    return loop


@pytest.fixture
def collector():
    return Collector()


def request(prompt=(1, 2, 3), **sampling):
    return EngineRequest(request_id="r", prompt_token_ids=prompt, sampling=SamplingParams(**sampling))


def test_tokens_of_a_request_come_in_batches_with_the_steps_time(collector):
    loop = loop_over(ScriptedEngine(step_s=0), collector)
    loop.submit(request(max_tokens=5))
    assert collector.ended.wait(HANG_S)
    snapshot = loop.snapshot().result(HANG_S)
    assert loop.stop(HANG_S)
    assert tuple(i for event in collector.events for i in event.token_ids) == tuple(scripted_answer([1, 2, 3], 5)[0])
    assert collector.events[-1].finish_reason is FinishReason.LENGTH
    assert collector.times == sorted(collector.times)
    assert snapshot.statistics.kv_blocks_free == snapshot.statistics.kv_blocks_total
    assert snapshot.step_time_s.last == snapshot.step_time_s.p99 == 1.0  # the clock ticks once in a step


def test_a_command_runs_between_steps_on_the_engine_thread(collector):
    loop = loop_over(ScriptedEngine(step_s=0), collector)
    names = []
    loop.post(lambda engine: names.append(threading.current_thread().name))
    loop.snapshot().result(HANG_S)
    assert names == ["engine"]
    assert loop.stop(HANG_S)


def test_an_abort_ends_the_request_at_once(collector):
    loop = loop_over(ScriptedEngine(step_s=0), collector)
    loop.submit(request(max_tokens=100_000))
    loop.post(lambda engine: engine.abort("r"))
    assert collector.ended.wait(HANG_S)
    assert collector.events[-1].finish_reason is FinishReason.CANCELLED
    assert loop.stop(HANG_S)


def test_what_the_engine_does_not_take_ends_with_an_error(collector):
    loop = loop_over(ScriptedEngine(step_s=0), collector)
    loop.submit(request(prompt=()))
    assert collector.ended.wait(HANG_S)
    assert collector.events[-1].finish_reason is FinishReason.ERROR
    assert loop.stop(HANG_S)


def test_an_engine_that_raises_is_dead_and_says_so(collector):
    class Broken(ScriptedEngine):
        def step(self):
            raise RuntimeError("out of memory")

    loop = loop_over(Broken(step_s=0), collector)
    loop.submit(request())
    assert collector.dead.wait(HANG_S)
    assert "out of memory" in collector.detail
    assert loop.stop(HANG_S)


def test_an_idle_engine_makes_no_steps(collector):
    engine = ScriptedEngine(step_s=0)
    loop = loop_over(engine, collector)
    assert loop.snapshot().result(HANG_S).statistics.steps == 0
    assert loop.stop(HANG_S)
    assert collector.events == []


def test_the_load_is_told_when_it_changes_and_only_then(collector):
    engine = ScriptedEngine(step_s=0)
    loop = loop_over(engine, collector)
    loop.submit(request(max_tokens=5))
    assert collector.ended.wait(HANG_S)
    loop.snapshot().result(HANG_S)
    assert loop.stop(HANG_S)
    assert collector.loads[-1] == engine.load()
    assert all(before != after for before, after in itertools.pairwise(collector.loads))
    assert len(collector.loads) < len(collector.times)


def test_the_load_is_told_too_when_no_step_follows(collector):
    loop = loop_over(ScriptedEngine(step_s=0), collector)
    loop.submit(request(max_tokens=100_000))
    loop.post(lambda engine: engine.step())
    loop.post(lambda engine: engine.pause("r"))
    assert collector.idle.wait(HANG_S)  # out of the batch, its KV held
    assert loop.stop(HANG_S)
