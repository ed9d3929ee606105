"""``sluiceway simulate``: the arms side by side on a made-up machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sluiceway.cli.simulate import profile as profiles
from sluiceway.cli.simulate import report, trace
from sluiceway.cli.simulate.arms import ARMS
from sluiceway.cli.simulate.compare import compare, ratios

_DRAWN = "A drawn trace"
_notes = Console(stderr=True, highlight=False)


def simulate(
    trace_file: Annotated[Path | None, typer.Option("--trace", help="CSV or JSONL: see docs/simulate.md.")] = None,
    profile: Annotated[str, typer.Option(help=f"{', '.join(profiles.PROFILES)} or a JSON file.")] = "gpu",
    out: Annotated[Path | None, typer.Option(help="Write the figures here (JSON), and a plot beside it.")] = None,
    arms: Annotated[str, typer.Option(help="Which to compare, by comma.")] = ",".join(ARMS),
    processes: Annotated[int | None, typer.Option(min=1, help="Arms at once; default: one a core.")] = None,
    streams: Annotated[int, typer.Option(min=1, rich_help_panel=_DRAWN)] = 10_000,
    slow: Annotated[float, typer.Option(min=0, max=1, help="Share of slow readers.", rich_help_panel=_DRAWN)] = 0.5,
    distribution: Annotated[
        str, typer.Option(help=f"Arrivals: {', '.join(trace.ARRIVALS)}.", rich_help_panel=_DRAWN)
    ] = "poisson",
    per_s: Annotated[
        float | None, typer.Option(help="Arrivals a second; default: the profile's.", rich_help_panel=_DRAWN)
    ] = None,
    prompts: Annotated[str, typer.Option(help=f"Lengths: {trace.LENGTHS}.", rich_help_panel=_DRAWN)] = "chat",
    outputs: Annotated[str, typer.Option(help=f"Lengths: {trace.LENGTHS}.", rich_help_panel=_DRAWN)] = "chat",
    leaving: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the slow that leave early.", rich_help_panel=_DRAWN)
    ] = 0.5,
    seed: Annotated[int, typer.Option(rich_help_panel=_DRAWN)] = 0,
    save_trace: Annotated[Path | None, typer.Option(help="Write the trace here (JSONL).")] = None,
) -> None:
    """Predict what slow readers cost: the real core and scheduler, thousands of streams, a price for a step."""
    machine = profiles.load(profile)
    names = [name.strip() for name in arms.split(",")]
    for name in names:
        if name not in ARMS:
            raise ValueError(f"arm is {name!r}, must be one of {', '.join(ARMS)}")
    came_from: dict[str, Any]
    if trace_file is not None:
        arrivals = trace.read(trace_file)
        came_from = {"file": trace_file.name}
    else:
        drawn = {
            "streams": streams, "per_s": per_s or machine.per_s, "slow": slow, "seed": seed,
            "arrivals": distribution, "prompts": prompts, "outputs": outputs, "leaving": leaving,
        }  # fmt: skip
        arrivals = trace.draw(**drawn)  # type: ignore[arg-type]  # the values are of the right types
        came_from = drawn
    longest = max(arrivals, key=lambda arrival: arrival.prompt_tokens + arrival.output_tokens)
    if longest.prompt_tokens + longest.output_tokens > machine.kv_tokens:
        raise ValueError(
            f"a request of {longest.prompt_tokens} + {longest.output_tokens} tokens does not fit profile "
            f"{machine.name}: its KV holds {machine.kv_tokens}"
        )
    if save_trace is not None:
        trace.write(save_trace, arrivals)
    began = time.perf_counter()
    _notes.print(f"{len(arrivals):,} streams, {sum(arrival.is_slow for arrival in arrivals):,} slow, on {machine.name}")
    reports = compare(
        names,
        machine,
        arrivals,
        processes=processes,
        done=lambda arm: _notes.print(f"  {arm.name}: {arm.simulated_s:.0f} s simulated in {arm.took_s:.1f} s"),
    )
    took_s = time.perf_counter() - began
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=report.WIDTH)
    console.print(report.table(reports))
    for name, value in ratios(reports).items():
        console.print(f"{name}: {value:.3f}")
    console.print(f"took {took_s:.1f} s")
    if out is not None:
        came_from |= {"requests": len(arrivals), "slow_requests": sum(arrival.is_slow for arrival in arrivals)}
        report.write(out, report.as_json(machine, came_from, reports, took_s), reports)
        _notes.print(f"written: {out}")
