"""What the demo shows while it runs: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sluiceway.cli.demo.cast import EVERYBODY

LINE_EVERY_S = 3.0
REFRESHES_PER_S = 4
LEVELS = ("produced", "sent", "forwarded", "delivered")
COLOURS = {"streaming": "green", "waiting": "cyan", "paused": "yellow", "swapped": "blue", "preempted": "magenta"}


class View:
    """``update`` may be called as often as one likes; it draws when it is time to."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._phase = ""
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def phase(self, text: str) -> None:
        self._phase = text
        self._drawn_at = 0.0
        if self._live is None:
            self.console.print(f"{time.strftime('%H:%M:%S')} {text}", highlight=False, soft_wrap=True)

    def update(self, statistics: Mapping[str, Any], rss_bytes: int) -> None:
        now = time.monotonic()
        if now - self._drawn_at < (1 / REFRESHES_PER_S if self._live else LINE_EVERY_S):
            return
        self._drawn_at = now
        footer = _footer(statistics, rss_bytes)
        if self._live is None:
            self.console.print(f"         {_counts(statistics)}; {footer}", highlight=False, soft_wrap=True)
        else:
            self._live.update(Group(Text(self._phase, style="bold"), table(statistics), Text(footer)), refresh=True)


def table(statistics: Mapping[str, Any]) -> Table:
    """One row a person; tokens at each level tell where a stream is stuck."""
    drawn = Table()
    for column in ("who", "habit", "state"):
        drawn.add_column(column)
    for column in (*LEVELS, "backlog", "bytes", "KV blocks", "pauses"):
        drawn.add_column(column, justify="right")
    streams = {stream["client_id"].split("#")[0]: stream for stream in statistics["streams"]}
    for role in EVERYBODY:
        stream = streams.get(role.name)
        if stream is None:
            drawn.add_row(role.name, role.habit, Text("-", style="dim"))
            continue
        drawn.add_row(
            role.name,
            role.habit,
            Text(stream["state"], style=COLOURS.get(stream["state"], "")),
            *(str(stream[level]["tokens"]) for level in LEVELS),
            str(stream["backlog"]["tokens"]),
            str(stream["backlog"]["bytes"]),
            str(stream["kv_blocks"]),
            str(stream["pauses"]),
        )
    return drawn


def _footer(statistics: Mapping[str, Any], rss_bytes: int) -> str:
    engine = statistics["engine"]
    used = engine["kv_blocks_total"] - engine["kv_blocks_free"]
    return (
        f"KV {used} of {engine['kv_blocks_total']} blocks; {engine['running']} in the batch; "
        f"memory of all processes {rss_bytes / 2**20:.0f} MiB"
    )


def _counts(statistics: Mapping[str, Any]) -> str:
    states: dict[str, int] = {}
    for stream in statistics["streams"]:
        states[stream["state"]] = states.get(stream["state"], 0) + 1
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "no stream"
