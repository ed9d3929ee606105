"""A comparison as a table, as JSON and as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from sluiceway.cli.simulate.compare import ArmReport, ratios
from sluiceway.cli.simulate.profile import Profile

WIDTH = 150  # of the table, where the screen does not say
_COLUMNS = (
    "arm", "goodput", "TTFT p50", "p99", "TPOT p50", "p99", "longest wait", "tokens/s", "wasted", "recomputed",
    "buffered", "spool", "policy",
)  # fmt: skip


def table(reports: Mapping[str, ArmReport]) -> Table:
    """Times of normal readers (longest wait: of anybody); tokens/s until the last of them is done; buffered and
    spool: peaks; policy: real time a step.
    """
    found = Table(title="simulated")
    for column in _COLUMNS:
        found.add_column(column, justify="left" if column == "arm" else "right", no_wrap=True)
    for name, report in reports.items():
        seen = report.figures
        found.add_row(
            name,
            f"{seen.goodput:.1%}",
            *(_seconds(value) for value in (seen.ttft_p50_s, seen.ttft_p99_s, seen.tpot_p50_s, seen.tpot_p99_s)),
            _seconds(seen.longest_wait_s),
            f"{seen.throughput_tokens_per_s:,.0f}",
            f"{seen.wasted_tokens:,}",
            f"{report.recomputed_tokens:,}",
            _bytes(report.peak_buffered_bytes),
            _bytes(report.peak_granted_bytes),
            f"{report.policy_ms_per_step:.3f} ms",
        )
    return found


def as_json(
    profile: Profile, trace: Mapping[str, Any], reports: Mapping[str, ArmReport], took_s: float
) -> dict[str, Any]:
    """trace: where it came from."""
    return {
        "profile": asdict(profile),
        "trace": dict(trace),
        "arms": {name: report.as_json() for name, report in reports.items()},
        "ratios": {
            name: round(value, 4) if math.isfinite(value) else None for name, value in ratios(dict(reports)).items()
        },
        "took_s": round(took_s, 2),
    }


def write(path: Path, document: Mapping[str, Any], reports: Mapping[str, ArmReport]) -> None:
    """FILE.json, and FILE.png beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    _plot(path.with_suffix(".png"), reports)


def _plot(path: Path, reports: Mapping[str, ArmReport]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    waits, goodput, tokens = figure.subplots(1, 3)
    names = list(reports)
    for name, report in reports.items():
        known = sorted(ttft for ttft in report.ttft_s if ttft is not None)
        shares = [(index + 1) / len(report.ttft_s) for index in range(len(known))]
        waits.plot(known, shares, label=name)
    waits.set(xlabel="time to first token (s)", ylabel="share of normal readers", xscale="log", title="TTFT")
    waits.legend()
    goodput.bar(names, [report.figures.goodput for report in reports.values()])
    goodput.set(ylim=(0, 1), title="goodput of normal readers")
    bottom = [0.0] * len(names)
    for label, values in {
        "recomputed": [report.recomputed_tokens for report in reports.values()],
        "wasted (reader left)": [report.figures.wasted_tokens for report in reports.values()],
    }.items():
        tokens.bar(names, values, bottom=bottom, label=label)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    tokens.set(title="tokens computed for nothing")
    tokens.legend()
    for axes in (goodput, tokens):
        axes.tick_params(axis="x", rotation=30)
    figure.savefig(path, dpi=120)


def _seconds(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def _bytes(value: int) -> str:
    return f"{value / 1024:,.0f} KiB" if value < 1 << 20 else f"{value / (1 << 20):,.1f} MiB"
