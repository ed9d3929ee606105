"""`bench policy` without a server: the same requests for every arm, honest sums, promises that can break."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from token_server import TokenServer

from sluiceway.cli.bench import policy
from sluiceway.cli.bench.pace import Pace
from sluiceway.cli.bench.policy_arms import ARMS, MACHINE, config, engine, sized, streams_at_once
from sluiceway.cli.bench.policy_cell import Cell, flat, growth
from sluiceway.cli.bench.policy_clients import outcomes, plans, prompt, reading_policy
from sluiceway.cli.bench.policy_cliff import Fall
from sluiceway.cli.bench.policy_prediction import Prediction, predict
from sluiceway.cli.bench.readers import (
    ClientPlan,
    ConnectionSettings,
    Never,
    Normal,
    Rate,
    ReaderProcess,
    Reading,
    StopAfter,
    StreamRequest,
)
from sluiceway.cli.simulate.figures import Outcome, figures
from sluiceway.cli.simulate.trace import Arrival
from sluiceway.engine.scripted import ScriptedEngine


def test_a_trace_becomes_clients_that_ask_for_what_it_says():
    trace = [
        Arrival(arrival_s=0.5, prompt_tokens=50, output_tokens=7),
        Arrival(arrival_s=1.0, prompt_tokens=9, output_tokens=300, reader="never", leaves_after_s=3.0),
    ]
    normal, never = plans(1, trace, "x")
    assert len(ScriptedEngine().encode(normal.request.prompt)) == 50
    assert (normal.request.client_id, normal.request.max_tokens, normal.start_after_s) == ("x-000", 7, 0.5)
    assert (normal.leave_after_s, never.leave_after_s) == (None, 3.0)
    # Each its own connection; a small window is what makes a slow client visible.
    assert normal.share is never.share is None
    assert never.connection.stream_window < normal.connection.stream_window


def test_every_reader_of_a_trace_has_a_policy_and_all_count_what_they_receive():
    assert reading_policy("normal") == Normal()
    assert reading_policy("never") == Never(parses=True)
    assert reading_policy("rate:500") == Rate(500.0)
    assert reading_policy("stop:8192") == StopAfter(8192)
    assert all(reading_policy(each).parses for each in ("normal", "never", "rate:5", "stop:0"))


@pytest.mark.parametrize("tokens", [1, 34, 35, 36, 700])
def test_a_prompt_has_as_many_tokens_as_asked(tokens):
    assert len(ScriptedEngine().encode(prompt(tokens))) == tokens


def reading(client_id, *, opened_at=10.0, arrivals=(), finish_reason="", left="", closed_at=None):
    return Reading(
        client_id=client_id,
        opened_at=opened_at,
        arrivals=list(arrivals),
        texts=["x"] * len(arrivals),
        token_counts=[1] * len(arrivals),
        finish_reason=finish_reason,
        left=left,
        closed_at=closed_at,
    )


TRACE = [
    Arrival(arrival_s=0.0, prompt_tokens=5, output_tokens=3),
    Arrival(arrival_s=1.0, prompt_tokens=5, output_tokens=90, reader="never", leaves_after_s=4.0),
    Arrival(arrival_s=2.0, prompt_tokens=5, output_tokens=90, reader="never"),
    Arrival(arrival_s=3.0, prompt_tokens=5, output_tokens=3, leaves_after_s=4.0),
    Arrival(arrival_s=4.0, prompt_tokens=5, output_tokens=3),
]


def test_outcomes_join_what_clients_saw_with_what_the_engine_made():
    readings = [
        reading("c-000", arrivals=[10.5, 11.0, 11.5], finish_reason="length", closed_at=11.6),
        reading("c-001", opened_at=11.0, arrivals=[11.5], left="rst_stream", closed_at=15.0),
        reading("c-002", opened_at=12.0, arrivals=[12.5], left="fin", closed_at=99.0),
        reading(
            "c-003",
            opened_at=13.0,
            arrivals=[13.5, 14.0, 14.5],
            finish_reason="length",
            left="rst_stream",
            closed_at=17.0,
        ),
    ]
    done, left, stayed, finished, never_sent = outcomes(
        TRACE, "c", readings, {"c-000": 3, "c-001": 80, "c-002": 70, "c-003": 3}, began_at=10.0
    )
    assert (done.first_token_at, done.finished_at, done.is_complete, done.delivered_tokens) == (10.5, 11.5, True, 3)
    assert (left.left_at, left.generated_tokens, left.delivered_tokens, left.finished_at) == (15.0, 80, 1, None)
    assert stayed.left_at is None  # it was the end of the cell that closed it
    assert finished.left_at is None  # it had its answer by then
    assert (never_sent.arrived_at, never_sent.first_token_at, never_sent.generated_tokens) == (14.0, None, 0)
    assert figures([done, left, stayed, finished, never_sent], MACHINE.targets, ended_at=99.0).wasted_tokens == 79


def test_a_client_leaves_when_its_plan_says_so():
    with TokenServer() as server:
        request = StreamRequest(prompt="x", max_tokens=100_000, client_id="leaver")
        settings = ConnectionSettings(port=server.port, stream_window=4096)
        process = ReaderProcess(
            [ClientPlan(connection=settings, request=request, policy=Never(parses=True), leave_after_s=0.3)]
        )
        (seen,) = process.wait(20)
        assert seen.left == "rst_stream"
        assert server.cancelled.wait(5)
        assert seen.closed_at - seen.opened_at >= 0.3


def test_a_client_that_is_done_before_does_not_leave():
    with TokenServer() as server:
        request = StreamRequest(prompt="x", max_tokens=3, client_id="done")
        plan = ClientPlan(connection=ConnectionSettings(port=server.port), request=request, leave_after_s=20.0)
        (seen,) = ReaderProcess([plan]).wait(10)
        assert (seen.left, seen.finish_reason) == ("", "length")


def test_the_arms_share_everything_but_their_policy():
    machine = sized(MACHINE, kv_blocks=100)
    made = {arm: config(arm, machine) for arm in ARMS}
    assert {policy.OURS, policy.BASELINE, "hold", "drop"} == made.keys()
    assert all(each["engine"].items() >= engine(machine).items() for each in made.values())
    assert len({str(each) for each in made.values()}) == len(made)


def test_kv_is_half_of_what_the_offered_streams_would_hold():
    trace = policy.trace(0, requests=policy.REQUESTS)
    output = sum(each.output_tokens for each in trace) / len(trace)
    held = sum(each.prompt_tokens + each.output_tokens / 2 for each in trace) / len(trace)
    offered = streams_at_once(MACHINE, MACHINE.per_s, output)
    # Little's law holds at the step that so many streams make.
    assert offered == pytest.approx(MACHINE.per_s * output * (MACHINE.base_s + MACHINE.per_stream_s * offered))
    assert policy.kv_blocks(trace) * MACHINE.kv_block_tokens == pytest.approx(offered * held / 2, rel=0.01)
    # One request always fits alone, and the longest has room in the pool.
    assert max(each.prompt_tokens + each.output_tokens for each in trace) < policy.kv_blocks(trace) * 16


def test_more_than_any_batch_can_do_is_no_load():
    with pytest.raises(ValueError, match="more than any batch"):
        streams_at_once(replace(MACHINE, per_stream_s=0.01), 10, 100)


def test_the_same_requests_at_every_share():
    traces = [policy.trace(percent, requests=40) for percent in policy.SHARES]
    asked = [[(each.arrival_s, each.prompt_tokens, each.output_tokens) for each in trace] for trace in traces]
    assert asked[0] == asked[1] == asked[2] == asked[3]
    assert [sum(each.is_slow for each in trace) for trace in traces] == [0, 10, 20, 30]
    assert any(each.leaves_after_s is not None for each in traces[2])


def test_counters_by_reason_are_flattened_and_only_growth_is_told():
    before = flat({"hold": {"reader_reads": 2}, "drop": 1})
    assert before == {"hold reader_reads": 2, "drop": 1}
    assert growth(before, flat({"hold": {"reader_reads": 5}, "drop": 1, "swap": 2})) == {
        "hold reader_reads": 3,
        "swap": 2,
    }


def cell(*, ttft_s=1.0, good=True, wasted=100, tokens=1000):
    normal = Outcome(
        request_id="n",
        is_slow=False,
        arrived_at=0.0,
        first_token_at=ttft_s,
        finished_at=10.0,
        asked_tokens=1000,
        generated_tokens=tokens,
        delivered_tokens=1000,
        finish_reason="length" if good else "error",
    )
    slow = Outcome(
        request_id="s",
        is_slow=True,
        arrived_at=0.0,
        first_token_at=1.0,
        finished_at=None,
        asked_tokens=1000,
        generated_tokens=wasted,
        delivered_tokens=0,
        left_at=9.0,
    )
    return Cell(
        figures=figures([normal, slow], MACHINE.targets, ended_at=10.0),
        outcomes=[normal, slow],
        took_s=10.0,
        was_cut=False,
    )


def falls(ttft_s=0.05):
    fall = Fall(quiet=Pace(ttft=[0.05]), stuck=Pace(ttft=[ttft_s]), curve=[(1.0, ttft_s)])
    return {what: {policy.OURS: fall, policy.BASELINE: fall} for what in ("slots", "kv")}


def row(**kwargs):
    return {percent: cell(**kwargs) for percent in policy.SHARES}


def test_promises_carry_the_issues_names_and_hold_where_ours_is_better():
    cells = {"run_to_completion": row(ttft_s=1.9), "hold": row(ttft_s=1.9), "drop": row(), "ours": row(ttft_s=0.5)}
    cells["ours"][50] = cell(ttft_s=0.5, wasted=10)
    made = policy.promises(cells, falls())
    assert [each.name for each in made] == [
        "goodput_ratio_slow_0",
        "goodput_ratio_slow_25",
        "goodput_ratio_slow_50",
        "goodput_ratio_slow_75",
        "ttft_p99_vs_run_to_completion",
        "ttft_p99_vs_hold",
        "throughput_vs_run_to_completion",
        "wasted_vs_run_to_completion",
        "slots_exhausted_ttft_ratio",
        "kv_exhausted_ttft_ratio",
    ]
    assert [each.name for each in made if not each.holds] == ["throughput_vs_run_to_completion"]  # 1010 of 1100


def test_promises_break():
    cells = {arm: row() for arm in ("run_to_completion", "hold", "drop")} | {"ours": row(good=False)}
    broken = {each.name for each in policy.promises(cells, falls(ttft_s=1.0)) if not each.holds}
    assert {"goodput_ratio_slow_0", "ttft_p99_vs_hold", "wasted_vs_run_to_completion"} <= broken
    assert {"slots_exhausted_ttft_ratio", "kv_exhausted_ttft_ratio"} <= broken


def test_nobody_got_a_token_is_no_good_ratio():
    assert Fall(quiet=Pace(ttft=[0.05])).ttft_ratio == math.inf


def test_the_plot_draws_whatever_was_measured():
    figure = Figure()
    policy.draw_figures(figure, {"ours": {50: cell()}}, falls(), {"ours": {50: Prediction(cell().figures)}})
    assert len(figure.axes) == 4


def test_a_prediction_is_of_the_same_trace_and_ends_when_the_cell_does():
    trace = policy.trace(0, requests=10)
    machine = sized(MACHINE, kv_blocks=policy.kv_blocks(trace))
    whole = predict("run_to_completion", machine, trace, limit_s=600.0)
    assert (whole.figures.normal, whole.figures.normal_unfinished) == (10, 0)
    cut = predict("run_to_completion", machine, trace, limit_s=5.0)
    assert cut.figures.normal_unfinished > 0
    assert cut.figures.duration_s <= 5.0


def test_a_prediction_says_by_how_much_it_was_wrong():
    measured, predicted = cell(ttft_s=1.0), cell(ttft_s=1.5, good=False)
    told = Prediction(predicted.figures).as_json(measured)
    assert told["goodput_error"] == -1.0
    assert told["predicted_over_measured"]["ttft_p99_s"] == 1.5
