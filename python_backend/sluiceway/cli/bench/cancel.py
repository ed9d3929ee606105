"""``bench cancel``: a client that leaves gives everything back at once, however and whenever it leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from matplotlib.figure import Figure

from sluiceway.cli.bench import crowd, half_open
from sluiceway.cli.bench.departures import (
    WAYS,
    Departure,
    Situation,
    finished_entries,
    leave_once,
    outcomes,
    wait_until_idle,
    ways,
)
from sluiceway.cli.bench.harness import NAIVE_MODELS, BenchContext, ScenarioResult
from sluiceway.cli.bench.holders import Holders
from sluiceway.cli.bench.network import SERVER_ADDRESS, CutNetwork, require_tools
from sluiceway.cli.bench.promise import Promise
from sluiceway.cli.bench.readers import OVER_HTTP1, Leave
from sluiceway.cli.bench.stats import percentile, summary
from sluiceway.cli.envoy import EnvoyOverrides
from sluiceway.cli.stack import Stack

BATCH_STREAMS = 8
CLIENTS_AT_ONCE = 4
CROWD = 200
SMALL_PAUSE = {
    "window": {"bytes": 8192, "tokens": 32, "frames": 32},
    "high": {"bytes": 8192, "tokens": 40, "frames": 40},
    "low": {"bytes": 2048, "tokens": 12, "frames": 12},
}
LEAVING: dict[str, Any] = {
    "engine": {
        "kind": "scripted",
        "step_s": 0.02,
        "kv_blocks": 4096,
        "max_batch_streams": BATCH_STREAMS,
        "prefill_chunk_tokens": 16,  # so that a prefill lasts for seconds and can be left
    },
    # Paused streams keep their KV here: that it comes back is what is measured.
    "flow_control": SMALL_PAUSE,
    "policy": {"mode": "hold"},
}
CROWDED: dict[str, Any] = {
    "engine": {"kind": "scripted", "step_s": 0.1, "kv_blocks": 8192, "max_batch_streams": 256},
    "flow_control": SMALL_PAUSE,
}
CROWD_PAUSED_TOKENS = 4000
# 4,096 bytes of window take about 30; a second (ten steps) without progress after that would pause the stream.
CROWD_FINISHED_TOKENS = 36
NAIVE_STEP_S = 0.02
NAIVE_PLAN = [(Leave.FIN, False), (Leave.FIN, False), (Leave.TCP_RST, True)]
# Envoy takes about 128 KiB a stream; only what comes after that queues in Triton.
NAIVE_FILL_S = 35.0


def run(context: BenchContext) -> ScenarioResult:
    """Raises NetworkUnavailableError before anything starts if the half-open check cannot run here."""
    is_grpc = context.protocol == "grpc"
    if is_grpc:
        require_tools()
    leaving = _leaving(context)
    crowded = _crowd(context)
    rows = leaving["outcomes"]
    promises = [
        Promise.at_most("kv_free_after_close_p99_ms", percentile([row["kv_free_ms"] for row in rows], 99), 300, "ms"),
        Promise.at_most("wasted_tokens_p99", percentile([row["wasted_tokens"] for row in rows], 99), 8, "tokens"),
        Promise.exactly("leaked_blocks", leaving["leaked_blocks"] + crowded["leaked_blocks"], 0, "blocks"),
        Promise.exactly("aborts_minus_disconnects", leaving["aborts_minus_disconnects"], 0, "aborts"),
        Promise.exactly("server_crashes", crowded["crashes"], 0, "crashes"),
    ]
    arms = {"leaving": leaving, "crowd": crowded}
    if is_grpc:
        silent = _half_open(context)
        found_s = max(row["detect_s"] for row in silent["streams"])
        promises.append(Promise.at_most("half_open_detect_s", found_s, silent["configured_s"], "s"))
        arms |= {"half_open": silent, "crowd_naive": _naive(context)}
    settings = {
        "leaving": LEAVING,
        "crowd": CROWDED,
        "crowd_clients": CROWD,
        "naive_step_s": NAIVE_STEP_S,
        "naive_fill_s": NAIVE_FILL_S,
        "protocol": context.protocol,
    }
    return ScenarioResult(settings=settings, arms=arms, promises=promises, plot=lambda figure: _plot(figure, rows))


def _leaving(context: BenchContext) -> dict[str, Any]:
    """Every way of leaving x everything a stream can be doing, repeated."""
    repeats = context.count(10, 2)
    done: list[Departure] = []
    with context.stack("leaving", LEAVING) as stack:
        start = wait_until_idle(stack)
        for situation, way in product(Situation, ways(context.protocol)):
            context.note(f"leaving while {situation} by {way}, {repeats} times")
            for departures in _repeated(stack, situation, way, repeats, context.protocol):
                done.extend(departures)
        entries = finished_entries(stack, [departure.client_id for departure in done])
        end = wait_until_idle(stack)
    rows = [asdict(row) for row in outcomes(done, entries)]
    return {
        "outcomes": rows,
        "cells": _cells(rows),
        "leaked_blocks": start["engine"]["kv_blocks_free"] - end["engine"]["kv_blocks_free"],
        "aborts_minus_disconnects": _grown(start, end, "aborts") - _grown(start, end, "disconnects"),
        "engine_aborts": end["engine"]["aborts"] - start["engine"]["aborts"],
        "totals": end["totals"],
    }


def _repeated(stack: Stack, situation: Situation, way: str, repeats: int, protocol: str) -> Iterator[list[Departure]]:
    # One prefill at a time: further ones would still be queued.
    clients = 1 if situation is Situation.PREFILL else CLIENTS_AT_ONCE
    times = repeats * CLIENTS_AT_ONCE if situation is Situation.PREFILL else repeats
    if situation is not Situation.QUEUED:
        for _ in range(times):
            yield leave_once(stack, situation, way, clients, protocol)
        return
    with Holders(stack, BATCH_STREAMS):
        for _ in range(times):
            yield leave_once(stack, situation, way, clients, protocol)


def _half_open(context: BenchContext) -> dict[str, Any]:
    clients = context.count(4, 2)
    # The file's own clocks take a minute and a half; the short run proves the mechanism with shorter ones.
    interval_s, timeout_s = (2.0, 4.0) if context.quick else (None, None)
    overrides = EnvoyOverrides(listener_address=SERVER_ADDRESS, ping_interval_s=interval_s, ping_timeout_s=timeout_s)
    configured_s = half_open.configured_s(overrides)
    with CutNetwork() as network, context.stack("half-open", LEAVING, envoy_overrides=overrides) as stack:
        context.note(f"dropping every packet; configured to notice within {configured_s:g} s")
        streams = half_open.detect(stack, network, clients, timeout_s=configured_s + 30)
    return {"configured_s": configured_s, "streams": streams}


def _crowd(context: BenchContext) -> dict[str, Any]:
    moments = crowd.moments(CROWD_PAUSED_TOKENS, CROWD_FINISHED_TOKENS)
    over_http1 = context.protocol in OVER_HTTP1
    leaves = [leave for leave in crowd.LEAVES if leave.value in ways(context.protocol)]
    combinations = list(product(moments, leaves, (False,) if over_http1 else (False, True)))
    wanted = context.count(20, 5)
    # A stride that shares no factor with the 18 combinations visits all of them, short runs mixed ones.
    plan = [combinations[(7 * n) % len(combinations)] for n in range(wanted)]
    done = []
    with context.stack("crowd", CROWDED) as stack:
        start = wait_until_idle(stack)
        for number, each in enumerate(crowd.rounds(stack, plan, CROWD, context.protocol), start=1):
            verdict = "CRASHED" if each.crashed else "stayed up"
            context.note(f"round {number}/{wanted}: {CROWD} clients, {each.moment}, {each.leave}: {verdict}")
            done.append(each)
        end = wait_until_idle(stack)
    leaked = start["engine"]["kv_blocks_free"] - end["engine"]["kv_blocks_free"]
    return {**crowd.summary(done), "leaked_blocks": leaked}


def _naive(context: BenchContext) -> dict[str, Any]:
    plan = NAIVE_PLAN[: context.count(3, 1)]
    done = []
    config = {"engine": {"step_s": NAIVE_STEP_S}}
    with context.stack("crowd-naive", config, model_repository=NAIVE_MODELS, with_backend_admin=False) as stack:
        context.note(f"the naive model: {CROWD} clients that never read, for {NAIVE_FILL_S:g} s a round")
        for each in crowd.naive_rounds(stack, plan, CROWD, NAIVE_FILL_S):
            context.note(f"naive, {each.leave}: {'CRASHED' if each.crashed else 'stayed up'}")
            done.append(each)
    return crowd.summary(done)


def _grown(start: Any, end: Any, name: str) -> int:
    return int(end["totals"][name] - start["totals"][name])


def _cells(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a way and situation."""
    cells = []
    for situation, way in product(Situation, WAYS):
        cell = [row for row in rows if (row["situation"], row["way"]) == (situation, way)]
        if not cell:  # no way of this protocol
            continue
        cells.append(
            {
                "situation": situation.value,
                "way": way,
                "noticed_ms": summary([row["noticed_ms"] for row in cell]),
                "kv_free_ms": summary([row["kv_free_ms"] for row in cell]),
                "wasted_tokens": summary([row["wasted_tokens"] for row in cell]),
            }
        )
    return cells


def _plot(figure: Figure, rows: Sequence[dict[str, Any]]) -> None:
    axes = figure.subplots()
    labels = []
    for position, (situation, way) in enumerate(product(Situation, WAYS)):
        times = [row["kv_free_ms"] for row in rows if (row["situation"], row["way"]) == (situation, way)]
        axes.plot([position] * len(times), times, ".", alpha=0.5)
        labels.append(f"{situation}\n{way}")
    axes.axhline(300, color="red", linewidth=1, label="promised at p99")
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.set_ylabel("KV blocks free after close, ms")
    axes.set_ylim(bottom=0)
    axes.legend()
