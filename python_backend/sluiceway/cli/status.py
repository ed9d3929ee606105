"""The table that ``sluiceway status`` prints."""

from __future__ import annotations

from typing import Any

import psutil
from rich.table import Table

from sluiceway.cli import health
from sluiceway.cli.daemon import State

_MIB = 1024 * 1024


def status_table(state: State) -> tuple[Table, bool]:
    """A table of the stack's processes, and whether all of it serves."""
    ports = state.ports
    answers = {
        "envoy": health.envoy_is_ready(ports.envoy_admin),
        "tritonserver": health.triton_is_ready(ports.triton_grpc),
    }
    if "gateway" in state.restarts:
        answers["gateway"] = health.gateway_is_ready(ports.gateway)
    try:
        statistics: dict[str, Any] | None = health.get_json(ports.admin, "/statistics")
    except (OSError, ValueError):
        statistics = None
    answers["stub"] = statistics is not None
    where = {
        "envoy": f"clients {ports.envoy}, admin {ports.envoy_admin}",
        "gateway": f"HTTP {ports.gateway}",
        "tritonserver": f"gRPC {ports.triton_grpc}, metrics {ports.triton_metrics}",
        "stub": f"statistics {ports.admin}",
        "listener": f"access log {ports.als}",
    }
    table = Table("process", "pid", "ports", "answers", "memory", "restarts", title="Sluiceway")
    for name, places in where.items():
        if name == "gateway" and name not in answers:
            continue  # a stack of gRPC alone
        pid = state.pids.get(name)
        answer = "-" if name not in answers else "yes" if answers[name] else "no"
        restarts = str(state.restarts[name]) if name in state.restarts else ""
        table.add_row(name, str(pid or "-"), places, answer, _memory(pid), restarts)
    if statistics is not None:
        totals = statistics["totals"]
        table.caption = (
            f"{totals['open_streams']} open streams, {totals['buffered_bytes']} bytes held, "
            f"{totals['accepted']} accepted, {totals['refused']} refused, {totals['disconnects']} disconnects"
        )
    return table, all(answers.values())


def _memory(pid: int | None) -> str:
    if pid is None:
        return "-"
    try:
        return f"{psutil.Process(pid).memory_info().rss / _MIB:.0f} MiB"
    except psutil.NoSuchProcess:
        return "-"
