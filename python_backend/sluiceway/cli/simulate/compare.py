"""All arms over one trace, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from sluiceway.cli.bench.stats import ratio, summary
from sluiceway.cli.simulate.arms import ARMS
from sluiceway.cli.simulate.figures import Figures, figures
from sluiceway.cli.simulate.profile import Profile
from sluiceway.cli.simulate.simulation import Result, Simulation
from sluiceway.cli.simulate.trace import Arrival

# The dearest to simulate first, so that no process is left alone with it at the end.
_ORDER = ("ours", "drop", "hold", "run_to_completion", "naive")


@dataclass(frozen=True, slots=True)
class ArmReport:
    """figures: as of the real stack. ttft_s: of each normal reader, in order (None: no first token).
    took_s: real seconds. engine: its other counters. turns_ms: what the policy took, real milliseconds.
    """

    name: str
    figures: Figures
    ttft_s: list[float | None]
    took_s: float
    steps: int
    simulated_s: float
    engine: dict[str, int]
    recomputed_tokens: int
    peak_buffered_bytes: int
    peak_granted_bytes: int
    peak_behind: int
    commands: dict[str, int]
    decisions: dict[str, int]
    turns_ms: dict[str, float]
    policy_ms_per_step: float
    finish_reasons: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        return {
            **self.figures.as_json(),
            "recomputed_tokens": self.recomputed_tokens,
            "peak_buffered_bytes": self.peak_buffered_bytes,
            "peak_spool_bytes": self.peak_granted_bytes,
            "peak_behind_streams": self.peak_behind,
            "steps": self.steps,
            **self.engine,
            "simulated_s": round(self.simulated_s, 3),
            "commands": self.commands,
            "decisions": self.decisions,
            "finish_reasons": self.finish_reasons,
            "policy_ms_per_step": round(self.policy_ms_per_step, 4),
            "policy_turn_ms": self.turns_ms,
            "took_s": round(self.took_s, 2),
        }


def simulate(name: str, profile: Profile, trace: Sequence[Arrival]) -> ArmReport:
    """One arm, in this process."""
    began = perf_counter()
    result = Simulation(ARMS[name], profile, trace).run()
    return _report(result, profile, perf_counter() - began)


def compare(
    names: Sequence[str],
    profile: Profile,
    trace: Sequence[Arrival],
    *,
    processes: int | None = None,
    done: Callable[[ArmReport], None] = lambda _: None,
) -> dict[str, ArmReport]:
    """Every arm of ``names``, in that order; done: told of each as it ends. processes: None for one a core."""
    order = sorted(names, key=_ORDER.index)
    processes = min(processes or os.cpu_count() or 1, len(order))
    reports = {}
    if processes == 1:
        for name in order:
            reports[name] = simulate(name, profile, trace)
            done(reports[name])
    else:
        # spawn: nothing of this process, whatever threads it has, is carried along.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            for future in as_completed([pool.submit(simulate, name, profile, trace) for name in order]):
                report = future.result()
                reports[report.name] = report
                done(report)
    return {name: reports[name] for name in names}


def ratios(reports: dict[str, ArmReport]) -> dict[str, float]:
    """Ours against the arms to beat, by the names that ``bench policy`` promises; NaN where one is missing."""
    if "ours" not in reports:
        return {}
    ours = reports["ours"].figures
    found = {}
    if "run_to_completion" in reports:
        other = reports["run_to_completion"].figures
        found["goodput_ratio"] = ratio(ours.goodput, other.goodput)
        found["ttft_p99_vs_run_to_completion"] = ratio(ours.ttft_p99_s, other.ttft_p99_s)
        found["throughput_vs_run_to_completion"] = ratio(ours.throughput_tokens_per_s, other.throughput_tokens_per_s)
        found["delivered_vs_run_to_completion"] = ratio(ours.delivered_tokens_per_s, other.delivered_tokens_per_s)
        found["wasted_vs_run_to_completion"] = ratio(ours.wasted_tokens, other.wasted_tokens)
    if "hold" in reports:
        found["ttft_p99_vs_hold"] = ratio(ours.ttft_p99_s, reports["hold"].figures.ttft_p99_s)
    return found


def _report(result: Result, profile: Profile, took_s: float) -> ArmReport:
    outcomes = result.outcomes
    reasons: dict[str, int] = {}
    for outcome in outcomes:
        reason = outcome.finish_reason or ("left" if outcome.left_at is not None else "open")
        reasons[reason] = reasons.get(reason, 0) + 1
    return ArmReport(
        name=result.arm,
        figures=figures(outcomes, profile.targets, ended_at=result.ended_at, generated=result.generated),
        ttft_s=[
            None if outcome.first_token_at is None else outcome.first_token_at - outcome.arrived_at
            for outcome in outcomes
            if not outcome.is_slow
        ],
        took_s=took_s,
        steps=result.steps,
        simulated_s=result.ended_at,
        engine={
            "swap_outs": result.swap_outs,
            "swap_ins": result.swap_ins,
            "displacements": result.displacements,
        },
        recomputed_tokens=result.recomputed_tokens,
        peak_buffered_bytes=result.peak_buffered_bytes,
        peak_granted_bytes=result.peak_granted_bytes,
        peak_behind=result.peak_behind,
        commands=result.commands,
        decisions={f"{action} {reason}": count for (action, reason), count in sorted(result.decisions.items())},
        turns_ms=summary(result.review_s, scale=1000),
        policy_ms_per_step=1000 * sum(result.review_s) / result.steps if result.steps else 0.0,
        finish_reasons=reasons,
    )
