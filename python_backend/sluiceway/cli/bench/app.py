"""``sluiceway bench SCENARIO --out FILE.json``."""

from __future__ import annotations

import enum
import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

SCENARIOS = {
    "isolation": "normal readers' TTFT and TPOT with and without readers that never read",
    "memory": "what a reader that never reads costs in memory, and that it stays flat",
    "cancel": "how fast a client that leaves gives its KV blocks back, in every way of leaving",
    "integrity": "slow readers get the reference text, byte for byte",
    "visibility": "how soon, and how many bytes late, each level shows a reader that stopped",
    "policy": "what the policy gains for people who read, against run-to-completion, hold and drop",
    "decisions": "what the policy costs in an engine step with 10,000 streams behind",
    "resume": "clients that vanish and come back, to the same replica or another, get exactly the rest",
    "engine": "tokens per second of the torch engine, and that pauses change no token",
}

OVER_ANY_PROTOCOL = ("isolation", "memory", "cancel", "integrity")

app = typer.Typer(no_args_is_help=True, help="Measure one promise; exit 1 if it does not hold.")

Out = Annotated[Path | None, typer.Option(help="Write the figures here (JSON), and a plot beside it.")]
Quick = Annotated[bool, typer.Option("--quick", help="A shorter run of the same promises.")]


class Protocol(enum.StrEnum):
    """What the clients speak; all but gRPC go through the gateway."""

    GRPC = "grpc"
    SSE = "sse"
    WEBSOCKET = "websocket"
    OPENAI = "openai"


Speaks = Annotated[Protocol, typer.Option(help="What the clients speak: SSE is Triton's generate_stream.")]


def run_scenario(name: str, out: Path | None, quick: bool, protocol: Protocol = Protocol.GRPC) -> bool:
    """Run one scenario; True if all its promises hold."""
    # Here, so that `sluiceway --help` does not wait for matplotlib and grpc.
    from sluiceway.cli.bench import report
    from sluiceway.cli.bench.harness import BenchContext

    scenario = importlib.import_module(f"sluiceway.cli.bench.{name}")
    with tempfile.TemporaryDirectory(prefix=f"sluiceway-bench-{name}-") as scratch:
        context = BenchContext(run_dir=Path(scratch), quick=quick, protocol=protocol.value)
        result = scenario.run(context)
    if out is not None:
        report.write(out, report.as_json(name, result, quick=quick), result)
        context.note(f"written: {out}")
    report.show(context.console, name, result)
    return all(promise.holds for promise in result.promises)


def _command_with_protocol(name: str) -> Callable[[Out, Quick, Protocol], None]:
    def command(out: Out = None, quick: Quick = False, protocol: Speaks = Protocol.GRPC) -> None:
        if not run_scenario(name, out, quick, protocol):
            raise typer.Exit(1)

    return command


def _command(name: str) -> Callable[[Out, Quick], None]:
    def command(out: Out = None, quick: Quick = False) -> None:
        if not run_scenario(name, out, quick):
            raise typer.Exit(1)

    return command


for _name, _summary in SCENARIOS.items():
    if _name in OVER_ANY_PROTOCOL:
        app.command(_name, help=_summary)(_command_with_protocol(_name))
    else:
        app.command(_name, help=_summary)(_command(_name))
