"""How long after a reader stops, and how much later, each level shows it; for every kind of client.

Nothing to hold: the floor is the client's own window. The table says which options keep a client visible.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from sluiceway.cli.bench.harness import BenchContext, ScenarioResult, scripted
from sluiceway.cli.bench.plans import SAMPLING
from sluiceway.cli.bench.readers import (
    DEFAULT,
    NO_BDP_PROBE,
    SMALL_WINDOW,
    ConnectionSettings,
    GrpcReader,
    Never,
    Normal,
    ReaderLoop,
    Reading,
    StreamRequest,
)
from sluiceway.cli.bench.watch import LEVELS, Watch
from sluiceway.cli.stack import Stack

STEP_S = 0.01  # 100 tokens a second, the pace of facts/envoy.md 1.2
READ_S = 2.0
TOKENS = 50_000


@dataclass(slots=True)
class Client:
    """One kind of client: its reading, and how to make it stop (returns the time) and leave."""

    reading: Reading
    stop: Callable[[], float]
    leave: Callable[[], object]


def raw(loop: ReaderLoop, port: int, window: int) -> Client:
    settings = ConnectionSettings(port=port, stream_window=window, connection_window=16 * 1024 * 1024)
    stream = loop.open(loop.connect(settings), _request(), Normal())
    return Client(stream.reading, lambda: loop.set_policy(stream, Never(parses=True)), lambda: None)


def grpcio(port: int, options: Any) -> Client:
    reader = GrpcReader(f"127.0.0.1:{port}", _request(), options=options).start()
    return Client(reader.reading, reader.stop_reading, reader.leave)


def _request() -> StreamRequest:
    return StreamRequest(prompt="Tell me something.", max_tokens=TOKENS, client_id="watched", sampling=SAMPLING)


KINDS: dict[str, Callable[[ReaderLoop, int], Client]] = {
    "raw h2, window 4 KiB": lambda loop, port: raw(loop, port, 4096),
    "raw h2, window 16 KiB": lambda loop, port: raw(loop, port, 16_384),
    "raw h2, window 64 KiB": lambda loop, port: raw(loop, port, 65_535),
    "grpcio, default": lambda _, port: grpcio(port, DEFAULT),
    "grpcio, bdp_probe=0": lambda _, port: grpcio(port, NO_BDP_PROBE),
    "grpcio, bdp_probe=0 lookahead_bytes=4096": lambda _, port: grpcio(port, SMALL_WINDOW),
}


def run(context: BenchContext) -> ScenarioResult:
    watch_s = context.seconds(20, 10)
    arms: dict[str, dict[str, Any]] = {}
    watches: dict[str, Watch] = {}
    with context.stack("visibility", scripted(STEP_S)) as stack:
        for kind, make in KINDS.items():
            watches[kind] = _watch(context, stack, kind, make, watch_s)
            arms[kind] = watches[kind].figures()
    context.console.print(table(arms, watch_s))
    return ScenarioResult(
        settings={"engine": "scripted", "step_s": STEP_S, "read_s": READ_S, "watched_s": watch_s},
        arms=arms,
        promises=[],
        plot=lambda figure: draw(figure, watches),
    )


def _watch(
    context: BenchContext, stack: Stack, kind: str, make: Callable[[ReaderLoop, int], Client], watch_s: float
) -> Watch:
    """Let one client read, stop it, and sample the backend's view of it until ``watch_s`` later."""
    with ReaderLoop() as loop:
        client = make(loop, stack.ports.envoy)
        context.sleep(READ_S, f"{kind}: reading")
        stopped_at = client.stop()
        read = len(client.reading.arrivals)
        watch = Watch(
            stopped_at=stopped_at,
            read_tokens=sum(client.reading.token_counts[:read]),
            read_bytes=client.reading.data_bytes,
        )
        context.note(f"{kind}: stopped after {watch.read_tokens} tokens")
        end = watch.stopped_at + watch_s
        while time.monotonic() < end:
            watch.add(stack.statistics(), client_id="watched")
            time.sleep(0.05)
        client.leave()
    context.sleep(1.0, "letting the stream end")
    return watch


def table(arms: dict[str, dict[str, Any]], watch_s: float) -> Table:
    """Seconds after the stop, and tokens that the level ran ahead of what the client had read."""
    shown = Table(title="how long after a reader stops each level shows it, and how far it had run ahead")
    shown.add_column("client")
    for level in LEVELS:
        shown.add_column(level, justify="right")
    for kind, figures in arms.items():
        cells = []
        for level in LEVELS:
            seen = figures["levels"][level]
            if seen["after_s"] is None:
                cells.append(f"not in {watch_s:.0f} s")
            else:
                cells.append(f"{seen['after_s']:.2f} s\n{seen['ahead_bytes'] / 1000:.1f} kB")
        shown.add_row(kind, *cells)
    return shown


def draw(figure: Figure, watches: dict[str, Watch]) -> None:
    """Tokens over time, one panel a kind of client."""
    axes = figure.subplots(2, 3, sharex=True).flat
    for axis, (kind, watch) in zip(axes, watches.items(), strict=True):
        times = [sample.at for sample in watch.samples]
        for level in ("produced", "sent", "forwarded", "delivered"):
            axis.plot(times, [sample.tokens[level] - watch.read_tokens for sample in watch.samples], label=level)
        axis.set_title(kind, fontsize="small")
    figure.supxlabel("seconds since the reader stopped")
    figure.supylabel("tokens beyond what it had read")
    figure.axes[0].legend(fontsize="x-small")
