"""What the policy gains for people who read, on the real stack: four arms, the same requests, the same machine.

The machine is the scripted engine's: a step costs what a GPU's would (policy_arms.MACHINE), KV for half of
the streams that would be open if each were served at once. The same trace goes to every arm; its slow
readers are a share of it. A simulation of each cell, by the same core, stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from sluiceway.cli.bench.harness import BenchContext, ScenarioResult
from sluiceway.cli.bench.plans import readers
from sluiceway.cli.bench.policy_arms import ARMS, MACHINE, blocks, config, sized, streams_at_once
from sluiceway.cli.bench.policy_cell import Cell, measure
from sluiceway.cli.bench.policy_cliff import KV, SLOTS, STUCK, STUCK_TOKENS, Fall, fall
from sluiceway.cli.bench.policy_prediction import Prediction, predict
from sluiceway.cli.bench.promise import Promise
from sluiceway.cli.bench.readers import ReaderProcess
from sluiceway.cli.bench.stats import ratio
from sluiceway.cli.simulate.profile import Profile
from sluiceway.cli.simulate.trace import Arrival, draw

SHARES = (0, 25, 50, 75)  # percent of the readers that are slow
QUICK_SHARES, QUICK_REQUESTS = (50,), 24  # and without the arm that no promise names
OURS, BASELINE = "ours", "run_to_completion"

REQUESTS = 48
# Mean 510 tokens. An answer below the high watermark (256 tokens) is never paused: it would show nothing.
PROMPTS, OUTPUTS = "lognormal:120:0.8", "lognormal:450:0.5"
LEAVES_AFTER_S = (5.0, 25.0)  # half of the slow ones; an answer takes about 13 s
SEED = 3
CELL_LIMIT_S = 60.0
CLIFF_LIMIT_S = 60.0  # run to completion: the stuck ones generate for 50 s

Cells = dict[str, dict[int, Cell]]  # by arm and percent
Predictions = dict[str, dict[int, Prediction]]
Falls = dict[str, dict[str, Fall]]  # by what ran out and arm


def trace(slow_percent: int, *, requests: int) -> list[Arrival]:
    return draw(
        streams=requests,
        per_s=MACHINE.per_s,
        slow=slow_percent / 100,
        seed=SEED,
        prompts=PROMPTS,
        outputs=OUTPUTS,
        leaves_after_s=LEAVES_AFTER_S,
    )


def kv_blocks(arrivals: list[Arrival]) -> int:
    """For half of the streams that are offered at once, each halfway through its answer."""
    prompt = sum(each.prompt_tokens for each in arrivals) / len(arrivals)
    output = sum(each.output_tokens for each in arrivals) / len(arrivals)
    offered = streams_at_once(MACHINE, MACHINE.per_s, output)
    return blocks(offered / 2 * (prompt + output / 2))


def run(context: BenchContext) -> ScenarioResult:
    requests = context.count(REQUESTS, QUICK_REQUESTS)
    limit_s = context.seconds(CELL_LIMIT_S, 40)
    shares = QUICK_SHARES if context.quick else SHARES
    machine = sized(MACHINE, kv_blocks=kv_blocks(trace(0, requests=requests)))
    cells: Cells = {}
    for arm in ARMS:
        if context.quick and arm == "drop":
            continue
        with context.stack(arm, config(arm, machine)) as stack:
            _warm_up(context, stack.ports.envoy)
            cells[arm] = {
                percent: measure(
                    context,
                    stack,
                    trace(percent, requests=requests),
                    MACHINE.targets,
                    label=f"{arm}-{percent}",
                    limit_s=limit_s,
                )
                for percent in shares
            }
    predicted: Predictions = {
        arm: {percent: predict(arm, machine, trace(percent, requests=requests), limit_s=limit_s) for percent in row}
        for arm, row in cells.items()
    }
    falls: Falls = {
        cliff.name: {arm: fall(context, arm, cliff, limit_s=_cliff_seconds(context, arm)) for arm in (OURS, BASELINE)}
        for cliff in (SLOTS, KV)
    }
    return ScenarioResult(
        settings=_settings(requests, machine),
        arms={
            **{arm: _row(row, predicted[arm]) for arm, row in cells.items()},
            **{f"{name}_exhausted": {arm: each.as_json() for arm, each in row.items()} for name, row in falls.items()},
        },
        promises=promises(cells, falls),
        plot=lambda figure: draw_figures(figure, cells, falls, predicted),
    )


def _row(row: dict[int, Cell], predicted: dict[int, Prediction]) -> dict[str, Any]:
    return {
        f"slow_{percent}": cell.as_json() | {"prediction": predicted[percent].as_json(cell)}
        for percent, cell in row.items()
    }


def _cliff_seconds(context: BenchContext, arm: str) -> float:
    if arm == BASELINE:
        return context.seconds(CLIFF_LIMIT_S, 6)
    return context.seconds(25, 6)


def _warm_up(context: BenchContext, port: int) -> None:
    process = ReaderProcess(readers(port, 8, tokens=50))
    context.sleep(3.0, "warming up")
    process.stop()
    context.sleep(1.0, "settling")


def _settings(requests: int, machine: Profile) -> dict[str, Any]:
    return {
        "engine": "scripted",
        "machine": asdict(machine),
        "requests": requests,
        "prompts": PROMPTS,
        "outputs": OUTPUTS,
        "leaves_after_s": LEAVES_AFTER_S,
        "seed": SEED,
        "cell_limit_s": CELL_LIMIT_S,
        "cliff": {"stuck": STUCK, "tokens": STUCK_TOKENS, "slots": asdict(SLOTS), "kv": asdict(KV)},
    }


def promises(cells: Mapping[str, Mapping[int, Cell]], falls: Mapping[str, Mapping[str, Fall]]) -> list[Promise]:
    """By the issue's names. A quick run has fewer shares."""
    ours, baseline = cells[OURS], cells[BASELINE]
    made = [
        Promise.at_least(
            f"goodput_ratio_slow_{percent}",
            ratio(ours[percent].figures.goodput, baseline[percent].figures.goodput),
            1.0 if percent else 0.98,
            "ratio",
        )
        for percent in ours
    ]
    half, base, hold = ours[50].figures, baseline[50].figures, cells["hold"][50].figures
    return [
        *made,
        Promise.at_most("ttft_p99_vs_run_to_completion", ratio(half.ttft_p99_s, base.ttft_p99_s), 0.5, "ratio"),
        Promise.at_most("ttft_p99_vs_hold", ratio(half.ttft_p99_s, hold.ttft_p99_s), 0.5, "ratio"),
        Promise.at_least(
            "throughput_vs_run_to_completion",
            ratio(half.throughput_tokens_per_s, base.throughput_tokens_per_s),
            0.97,
            "ratio",
        ),
        Promise.at_most("wasted_vs_run_to_completion", ratio(half.wasted_tokens, base.wasted_tokens), 0.25, "ratio"),
        *(
            Promise.at_most(f"{name}_exhausted_ttft_ratio", falls[name][OURS].ttft_ratio, 5.0, "ratio")
            for name in falls
        ),
    ]


def draw_figures(figure: Figure, cells: Cells, falls: Falls, predicted: Predictions) -> None:
    """Goodput, TTFT and waste over the share of slow readers, predictions dotted; TTFT over time at the cliffs."""
    goodput, ttft, waste, cliff = figure.subplots(2, 2).flat
    drawn = ((goodput, "goodput"), (ttft, "ttft_p99_s"), (waste, "wasted_tokens"))
    for number, (arm, row) in enumerate(cells.items()):
        percents = sorted(row)
        for axis, key in drawn:
            values = [getattr(row[each].figures, key) for each in percents]
            axis.plot(percents, values, marker="o", color=f"C{number}", label=arm)
            simulated = [getattr(predicted[arm][each].figures, key) for each in percents]
            axis.plot(percents, simulated, linestyle=":", marker="x", color=f"C{number}")
    for name, by_arm in falls.items():
        for arm, each in by_arm.items():
            style = "-" if arm == OURS else "--"
            cliff.plot(*_points(each), linestyle=style, marker=".", label=f"{name} exhausted, {arm}")
    goodput.set(title="normal readers within both targets", ylabel="share", ylim=(0, 1.05))
    ttft.set(title="TTFT of normal readers, p99", ylabel="seconds", yscale="log")
    waste.set(title="tokens made for readers that left, unread", ylabel="tokens")
    cliff.set(title="the cliff: TTFT by time since the stuck came", ylabel="seconds", yscale="log")
    for axis in (goodput, ttft, waste):
        axis.set_xlabel("slow readers, percent")
    cliff.set_xlabel("seconds")
    goodput.legend(fontsize="x-small")
    cliff.legend(fontsize="x-small")


def _points(each: Fall) -> tuple[list[float], list[float]]:
    points = [(at, ttft) for at, ttft in each.curve if math.isfinite(ttft)]
    return [at for at, _ in points], [ttft for _, ttft in points]
