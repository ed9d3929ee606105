"""The simulator, against what can be worked out by hand and what must hold in every arm."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulate.machines import SMALL, arrival, machine, run, seen
from sluiceway.cli.simulate.arms import ARMS
from sluiceway.cli.simulate.machine import Machine
from sluiceway.cli.simulate.trace import Arrival, draw
from sluiceway.core.limits import Limits

STUCK = [arrival(tokens=2000, reader="never") for _ in range(SMALL.max_batch_streams)]
NEXT = [arrival(at=30.0 + index, tokens=100) for index in range(3)]


@pytest.mark.parametrize("arm", ARMS)
def test_one_reader_alone_gets_a_token_a_step(arm: str) -> None:
    result = run(arm, [arrival(at=1.0, tokens=8)])
    (outcome,) = result.outcomes
    assert outcome.first_token_at == 1.0625
    assert outcome.finished_at == 1.5
    assert (outcome.generated_tokens, outcome.delivered_tokens, outcome.finish_reason) == (8, 8, "length")
    assert result.steps == 8


def test_a_step_costs_what_its_plan_says() -> None:
    priced = machine(per_stream_s=0.25, per_prefill_token_s=0.5, prefill_chunk_tokens=8)
    result = run("drop", [arrival(tokens=2), arrival(tokens=2)], priced)
    # Two prompts of 16 tokens in chunks of 8: the first has its token after two chunks; the other two
    # decode or prefill beside it, whatever the order.
    assert result.outcomes[0].first_token_at == pytest.approx(2 * (0.0625 + 8 * 0.5), abs=0.5)
    busy_s = 4 * (8 * 0.5) + 2 * 0.25 + result.steps * 0.0625
    assert result.ended_at == pytest.approx(busy_s)


@pytest.mark.parametrize("arm", ["naive", "run_to_completion"])
def test_run_to_completion_lets_stuck_readers_keep_their_places(arm: str) -> None:
    result = run(arm, STUCK + NEXT)
    assert seen(result).ttft_p99_s > 90  # 2,000 steps of 62.5 ms, less the 30 s that had passed


def test_ours_gives_the_places_to_those_who_read() -> None:
    quiet = seen(run("ours", NEXT)).ttft_p99_s
    result = run("ours", STUCK + NEXT)
    assert seen(result).ttft_p99_s <= 5 * quiet
    assert seen(result).goodput == 1


def test_ours_also_before_the_stuck_ones_are_paused() -> None:
    """At 12 s they have some 190 tokens, are above no watermark, and need none of them for long."""
    trace = [*STUCK, arrival(at=12.0, tokens=16)]
    assert seen(run("drop", trace)).ttft_p99_s > 4
    assert seen(run("ours", trace)).ttft_p99_s < 1


def test_a_reader_that_leaves_ends_its_request_but_in_the_naive_arm() -> None:
    trace = [arrival(tokens=1000, reader="rate:100", leaves_after_s=10.0)]
    for arm in ARMS:
        (outcome,) = run(arm, trace).outcomes
        assert outcome.left_at == 10.0
        if arm == "naive":
            assert outcome.generated_tokens == 1000
        else:
            assert outcome.generated_tokens <= 161
            assert outcome.finish_reason == "cancelled"


def test_who_had_everything_before_it_left_did_not_leave() -> None:
    (outcome,) = run("ours", [arrival(tokens=8, leaves_after_s=10.0, reader="rate:5000")]).outcomes
    assert outcome.left_at is None
    assert outcome.is_complete


def test_hold_keeps_kv_and_drop_gives_it_back() -> None:
    # The stuck ones pause with some 310 tokens, 20 blocks each; the next one's prompt of 32 does not fit beside them.
    tight = machine(kv_blocks=180)
    trace = [*STUCK, Arrival(arrival_s=40.0, prompt_tokens=512, output_tokens=64)]
    held, dropped = run("hold", trace, tight), run("drop", trace, tight)
    assert seen(dropped, tight).ttft_p99_s < 2
    assert seen(held, tight).ttft_p99_s > 10
    assert dropped.commands["ReleaseKv"] >= SMALL.max_batch_streams
    assert "ReleaseKv" not in held.commands


FAST = machine(base_s=0.015625)  # 64 tokens a second, 320 bytes of text


def test_a_steady_slow_reader_gets_its_whole_answer_in_every_arm() -> None:
    for arm in ARMS:
        result = run(arm, [arrival(tokens=1500, reader="rate:100")], FAST)
        (outcome,) = result.outcomes
        assert outcome.is_complete, arm
        assert outcome.delivered_tokens == 1500
        assert (result.commands.get("ResumeGeneration", 0) > 0) == ARMS[arm].pauses
        assert (result.recomputed_tokens > 0) == (arm == "drop")


@pytest.mark.parametrize("lump_tokens", [1, 16])
def test_a_reader_that_reads_nothing_gets_what_its_buffer_holds(lump_tokens: int) -> None:
    for arm in ARMS:
        (outcome,) = run(arm, [arrival(tokens=600, reader="never")], machine(lump_tokens=lump_tokens)).outcomes
        assert outcome.delivered_tokens == 4096 // 115, arm


@pytest.mark.parametrize(("action", "host_kv_bytes"), [("swap", 1 << 30), ("run_ahead", 0)])
def test_ours_does_what_is_cheapest_when_others_wait(action: str, host_kv_bytes: int) -> None:
    """Some 310 of 420 tokens are made when the slow ones pause (no cushion); to recompute them is dear."""
    trace = [arrival(tokens=420, reader="rate:60") for _ in range(12)]
    trace += [arrival(at=15.0 + index, tokens=200) for index in range(12)]
    profile = machine(kv_blocks=260, host_kv_bytes=host_kv_bytes, per_prefill_token_s=0.01)
    result = run("ours", trace, profile, Limits(cushion=None))
    assert action in {action for action, _ in result.decisions}
    assert (result.swap_outs > 0) == (action == "swap")
    assert (result.peak_granted_bytes > 0) == (action == "run_ahead")
    assert seen(result).normal_unfinished == 0


def test_a_copy_costs_what_it_is_priced_at() -> None:
    it = Machine(machine(host_kv_bytes=1 << 30), ARMS["ours"])
    it.submit("r", 0, 160)
    for _ in range(3):
        it.step()
    it.scheduler.pause("r")
    it.scheduler.swap_out("r")
    it.step()
    assert it.step_s == pytest.approx(11 * 0.001)  # 160 + 2 tokens in blocks of 16, and no forward pass


def test_a_tenant_of_slow_readers_starves_nobody_and_is_not_starved() -> None:
    trace = draw(streams=60, per_s=0.4, slow=0.0, outputs="fixed:100", prompts="fixed:32")
    readers = {True: ("slow", "rate:300"), False: ("normal", "normal")}
    trace = [
        arrival(at=each.arrival_s, tokens=400 if index % 2 else 100, tenant=name, reader=reader)
        for index, each in enumerate(trace)
        for name, reader in [readers[bool(index % 2)]]
    ]
    result = run("ours", trace)
    assert seen(result).normal_unfinished == 0
    assert all(outcome.is_complete for outcome in result.outcomes)
    waits = seen(result).longest_wait_by_tenant_s
    assert waits["normal"] < 2
    assert waits["slow"] < 10


def test_the_same_trace_gives_the_same_result() -> None:
    trace = draw(streams=40, per_s=3.0, slow=0.5, outputs="lognormal:200:1")
    one, other = run("ours", trace), run("ours", trace)
    assert one.outcomes == other.outcomes
    assert one.decisions == other.decisions


def test_larger_lumps_change_little() -> None:
    """What makes thousands of streams quick is an approximation: see simulation.py."""
    trace = draw(streams=60, per_s=1.0, slow=0.5, outputs="lognormal:300:0.7")
    fine, coarse = (seen(run("drop", trace, machine(lump_tokens=lump))) for lump in (1, 24))
    assert coarse.goodput == pytest.approx(fine.goodput, abs=0.05)
    assert coarse.ttft_p99_s == pytest.approx(fine.ttft_p99_s, rel=0.2, abs=0.1)
    assert coarse.throughput_tokens_per_s == pytest.approx(fine.throughput_tokens_per_s, rel=0.05)
    assert coarse.wasted_tokens == pytest.approx(fine.wasted_tokens, rel=0.15, abs=100)


ARRIVALS = st.builds(
    Arrival,
    arrival_s=st.floats(0, 20),
    prompt_tokens=st.integers(1, 300),
    output_tokens=st.integers(1, 700),
    reader=st.sampled_from(["normal", "normal", "never", "rate:300", "rate:5000", "stop:2000"]),
    leaves_after_s=st.none() | st.floats(0, 60),
)


@settings(max_examples=40, deadline=None)
@given(
    arm=st.sampled_from(sorted(ARMS)), trace=st.lists(ARRIVALS, min_size=1, max_size=25), kv_blocks=st.integers(64, 256)
)
def test_every_token_is_accounted_for(arm: str, trace: list[Arrival], kv_blocks: int) -> None:
    result = run(arm, trace, machine(kv_blocks=kv_blocks, host_kv_bytes=64 << 20))
    assert len(result.outcomes) == len(trace)
    assert sum(outcome.generated_tokens for outcome in result.outcomes) == result.generated[-1][1]
    for outcome in result.outcomes:
        assert 0 <= outcome.delivered_tokens <= outcome.generated_tokens <= outcome.asked_tokens
        assert outcome.first_token_at is None or outcome.first_token_at > outcome.arrived_at
        if outcome.is_complete:
            assert outcome.delivered_tokens == outcome.asked_tokens
        elif not outcome.is_slow:
            assert outcome.left_at is not None, "a normal reader that stays gets its answer, whatever the arm"
