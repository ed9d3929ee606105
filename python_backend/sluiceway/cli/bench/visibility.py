"""How long after a reader stops, and how many bytes late, each level shows it; for every kind of client.

Over gRPC without acks the floor is the client's own window: the table says which options keep a client visible.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from sluiceway.cli.bench import stock
from sluiceway.cli.bench.harness import BenchContext, ScenarioResult, scripted
from sluiceway.cli.bench.plans import SAMPLING
from sluiceway.cli.bench.promise import Promise
from sluiceway.cli.bench.readers import (
    DEFAULT,
    NO_BDP_PROBE,
    SMALL_WINDOW,
    AckReader,
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
WINDOW = 4096  # HTTP/2
RECEIVE_BUFFER = 4096  # SO_RCVBUF, HTTP/1.1; the kernel doubles it
STOCK = "Triton's generate_stream, stock Envoy"


@dataclass(slots=True)
class Client:
    """One kind of client: its reading, and how to make it stop (returns the time) and leave."""

    reading: Reading
    stop: Callable[[], float]
    leave: Callable[[], object]


Make = Callable[[ReaderLoop, int], Client]


def raw(protocol: str = "grpc", *, window: int = WINDOW, receive_buffer: int | None = None) -> Make:
    def make(loop: ReaderLoop, port: int) -> Client:
        settings = ConnectionSettings(
            port=port,
            protocol=protocol,
            stream_window=window,
            connection_window=16 * 1024 * 1024,
            receive_buffer=receive_buffer,
        )
        stream = loop.open(loop.connect(settings), _request(), Normal())
        return Client(stream.reading, lambda: loop.set_policy(stream, Never(parses=True)), lambda: None)

    return make


def grpcio(options: Any) -> Make:
    def make(_loop: ReaderLoop, port: int) -> Client:
        reader = GrpcReader(f"127.0.0.1:{port}", _request(), options=options).start()
        return Client(reader.reading, reader.stop_reading, reader.leave)

    return make


def with_acks(_loop: ReaderLoop, port: int) -> Client:
    reader = AckReader(f"127.0.0.1:{port}", _request()).start()
    return Client(reader.reading, reader.stop_reading, reader.leave)


def _request() -> StreamRequest:
    return StreamRequest(prompt="Tell me something.", max_tokens=TOKENS, sampling=SAMPLING)


KINDS: dict[str, Make] = {
    "raw h2, window 4 KiB": raw(),
    "raw h2, window 16 KiB": raw(window=16_384),
    "raw h2, window 64 KiB": raw(window=65_535),
    "grpcio, default": grpcio(DEFAULT),
    "grpcio, bdp_probe=0": grpcio(NO_BDP_PROBE),
    "grpcio, bdp_probe=0 lookahead_bytes=4096": grpcio(SMALL_WINDOW),
    "gRPC with acks": with_acks,
    "SSE, HTTP/1.1": raw("sse", receive_buffer=RECEIVE_BUFFER),
    "SSE, HTTP/2": raw("sse_h2"),
    "WebSocket": raw("websocket_without_acks", receive_buffer=RECEIVE_BUFFER),
    "WebSocket with acks": raw("websocket", receive_buffer=RECEIVE_BUFFER),
}
# Bytes that count as with the client, beyond what it read, in KiB.
PROMISES = {
    "hidden_kib_grpc_ack": ("gRPC with acks", 8),
    "hidden_kib_websocket_ack": ("WebSocket with acks", 8),
    "hidden_kib_sse_h1": ("SSE, HTTP/1.1", 64),
    "hidden_kib_sse_h2": ("SSE, HTTP/2", 64),
}


def run(context: BenchContext) -> ScenarioResult:
    watch_s = context.seconds(20, 10)
    arms: dict[str, dict[str, Any]] = {}
    watches: dict[str, Watch] = {}
    with context.stack("visibility", scripted(STEP_S), gateway=True) as stack:
        for kind, make in KINDS.items():
            watches[kind] = _watch(context, stack, kind, make, watch_s)
            arms[kind] = watches[kind].figures()
    with context.stack("stock", scripted(STEP_S), **stock.settings()) as stack:
        make = raw("sse", receive_buffer=RECEIVE_BUFFER)
        watches[STOCK] = _watch(context, stack, STOCK, make, watch_s)
        arms[STOCK] = watches[STOCK].figures()
    context.console.print(table(arms, watch_s))
    return ScenarioResult(
        settings={"engine": "scripted", "step_s": STEP_S, "read_s": READ_S, "watched_s": watch_s},
        arms=arms,
        promises=[
            Promise.at_most(name, arms[kind]["hidden_kib"], limit, "KiB") for name, (kind, limit) in PROMISES.items()
        ],
        plot=lambda figure: draw(figure, watches),
    )


def _watch(context: BenchContext, stack: Stack, kind: str, make: Make, watch_s: float) -> Watch:
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
            watch.add(stack.statistics())
            time.sleep(0.05)
        client.leave()
    context.sleep(1.0, "letting the stream end")
    return watch


def table(arms: dict[str, dict[str, Any]], watch_s: float) -> Table:
    """Seconds after the stop, and tokens that the level ran ahead of what the client had read."""
    shown = Table(title="how long after a reader stops each level shows it, and how far it had run ahead")
    shown.add_column("client")
    for level in LEVELS:
        shown.add_column(level.replace("_", " "), justify="right")
    shown.add_column("hidden", justify="right")
    for kind, figures in arms.items():
        cells = []
        for level in LEVELS:
            seen = figures["levels"][level]
            if seen["after_s"] is None:
                cells.append(f"not in {watch_s:.0f} s")
            else:
                cells.append(f"{seen['after_s']:.2f} s\n{seen['ahead_bytes'] / 1000:.1f} kB")
        shown.add_row(kind, *cells, f"{figures['hidden_kib']:.1f} KiB")
    return shown


def draw(figure: Figure, watches: dict[str, Watch]) -> None:
    """Tokens over time, one panel a kind of client."""
    figure.set_size_inches(12, 9)
    axes = list(figure.subplots(3, 4, sharex=True).flat)
    for axis, (kind, watch) in zip(axes, watches.items(), strict=False):
        times = [sample.at for sample in watch.samples]
        for level in ("produced", "sent", "with_client"):
            beyond = [sample.tokens[level] - watch.read_tokens for sample in watch.samples]
            axis.plot(times, beyond, label=level.replace("_", " "))
        axis.set_title(kind, fontsize="small")
    figure.supxlabel("seconds since the reader stopped")
    figure.supylabel("tokens beyond what it had read")
    figure.axes[0].legend(fontsize="x-small")
