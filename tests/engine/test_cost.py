from __future__ import annotations

import pytest

from engine.scheduling import add, make, step
from sluiceway.engine.calibration import Calibration
from sluiceway.engine.cost import StepCost
from sluiceway.engine.protocol import EngineRequest, SamplingParams
from sluiceway.engine.scripted import ScriptedEngine

COST = StepCost(base_s=1.0, per_stream_s=0.25, per_prefill_token_s=0.125, per_swapped_block_s=2.0)


def test_a_step_costs_what_its_plan_holds() -> None:
    scheduler = make(host_blocks=8)
    add(scheduler, "a", 4)
    add(scheduler, "b", 4)
    assert COST.seconds(scheduler.plan()) == 1.0 + 8 * 0.125
    scheduler = make(host_blocks=8)
    add(scheduler, "a", 6)
    add(scheduler, "b", 2)
    step(scheduler, 3)
    scheduler.pause("b")
    scheduler.swap_out("b")
    assert COST.seconds(step(scheduler)) == 1.0 + 0.25 + 1 * 2.0
    assert COST.of(swapped_blocks=3) == 6.0, "copies alone need no forward pass"


@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan")])
def test_a_wrong_cost_is_named(value: float) -> None:
    with pytest.raises(ValueError, match="per_stream_s"):
        StepCost(per_stream_s=value)
    with pytest.raises(ValueError, match="base_s"):
        ScriptedEngine(step_s=value)


def test_the_scripted_engine_sleeps_the_cost_and_knows_its_rates() -> None:
    slept: list[float] = []
    engine = ScriptedEngine(
        step_s=100.0,
        step_per_stream_s=10.0,
        step_per_prefill_token_s=1.0,
        step_per_swapped_block_s=0.5,
        kv_bytes_per_token=1,
        host_kv_bytes=64,
        sleep=slept.append,
    )
    engine.submit(
        EngineRequest(request_id="a", prompt_token_ids=(1, 2, 3), sampling=SamplingParams(max_tokens=2, temperature=0))
    )
    engine.step()
    engine.step()
    assert [round(seconds) for seconds in slept] == [103, 110]
    load = engine.load()
    assert 100 <= load.step_s <= 110
    assert (load.prefill_tokens_per_s, load.swap_blocks_per_s, load.host_blocks_free) == (1.0, 2.0, 4)
    assert ScriptedEngine(step_s=0.5, prefill_chunk_tokens=8).load().prefill_tokens_per_s == 16, "a chunk in a step"


def test_load_names_the_oldest_that_never_ran() -> None:
    engine = ScriptedEngine(step_s=0, max_batch_streams=1)
    for name in "abc":
        engine.submit(EngineRequest(request_id=name, prompt_token_ids=(1,)))
    engine.step()
    load = engine.load()
    assert (load.waiting, load.oldest_waiting, load.batch_free, load.batch_streams) == (2, "b", 0, 1)
    engine.pause("a")
    engine.step()
    assert engine.load().oldest_waiting == "c"


def test_prefill_is_what_a_step_takes_longer() -> None:
    calibration = Calibration(step_s=0.02)
    assert (calibration.prefill_tokens_per_s, calibration.swap_blocks_per_s) == (0, 0)
    calibration.observe_step(0.12, decodes=4, prefill_tokens=100)
    assert calibration.prefill_tokens_per_s == pytest.approx(1000)
    calibration.observe_swap(0.5, blocks=10)
    assert calibration.swap_blocks_per_s == pytest.approx(20)
    for _ in range(1000):
        calibration.observe_step(0.04, decodes=4, prefill_tokens=0)
        calibration.observe_step(0.24, decodes=4, prefill_tokens=100)
        calibration.observe_swap(0.1, blocks=10)
    assert calibration.prefill_tokens_per_s == pytest.approx(500, rel=0.01)
    assert calibration.swap_blocks_per_s == pytest.approx(100, rel=0.01)
    assert 0.04 < calibration.step_s < 0.24


def test_a_step_that_does_nothing_teaches_nothing() -> None:
    calibration = Calibration(step_s=0.02)
    calibration.observe_step(9.0, decodes=0, prefill_tokens=0)
    calibration.observe_swap(9.0, blocks=0)
    assert (calibration.step_s, calibration.swap_blocks_per_s) == (0.02, 0)
