"""The ``sluiceway`` command."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sluiceway.cli import daemon
from sluiceway.cli.bench.app import app as bench_app
from sluiceway.cli.envoy import EnvoyOverrides
from sluiceway.cli.ports import Ports
from sluiceway.cli.setup import REPOSITORY, NotInstalledError
from sluiceway.cli.simulate.app import simulate
from sluiceway.cli.stack import StackError, StackSettings
from sluiceway.cli.status import status_table

_DEFAULT = Ports.default()
_console = Console(stderr=True, highlight=False)
RunDir = Annotated[Path, typer.Option(envvar="SLUICEWAY_RUN_DIR", help="Logs and state of the running stack.")]
DEFAULT_RUN_DIR = REPOSITORY / ".run" / "up"


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A streamed LLM answer that knows whether its reader reads.",
)
app.add_typer(bench_app, name="bench")
app.command()(simulate)


def _port(name: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        min=1, max=65_535, envvar=f"SLUICEWAY_{name.upper()}_PORT", rich_help_panel="Ports (on the loopback address)"
    )
    return option


@app.command()
def up(
    run_dir: RunDir = DEFAULT_RUN_DIR,
    model_repository: Annotated[
        Path, typer.Option(envvar="SLUICEWAY_MODEL_REPOSITORY", exists=True, file_okay=False)
    ] = REPOSITORY / "model_repository",
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay here; Ctrl-C or SIGTERM stops it.")] = False,
    gateway: Annotated[bool, typer.Option(help="Serve the HTTP APIs, WebSocket and the web page too.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Envoy's worker threads.")] = 1,
    timeout_s: Annotated[float, typer.Option(min=1, help="How long to wait until the stack serves.")] = 120,
    envoy_port: Annotated[int, _port("envoy")] = _DEFAULT.envoy,
    envoy_admin_port: Annotated[int, _port("envoy_admin")] = _DEFAULT.envoy_admin,
    triton_grpc_port: Annotated[int, _port("triton_grpc")] = _DEFAULT.triton_grpc,
    triton_metrics_port: Annotated[int, _port("triton_metrics")] = _DEFAULT.triton_metrics,
    als_port: Annotated[int, _port("als")] = _DEFAULT.als,
    admin_port: Annotated[int, _port("admin")] = _DEFAULT.admin,
    gateway_port: Annotated[int, _port("gateway")] = _DEFAULT.gateway,
) -> None:
    """Start Triton, the gateway and Envoy, watched by a supervisor in the background."""
    ports = Ports(
        envoy=envoy_port,
        envoy_admin=envoy_admin_port,
        triton_grpc=triton_grpc_port,
        triton_metrics=triton_metrics_port,
        als=als_port,
        admin=admin_port,
        gateway=gateway_port,
    )
    settings = StackSettings(
        run_dir=run_dir,
        model_repository=model_repository,
        ports=ports,
        gateway=gateway,
        envoy_overrides=EnvoyOverrides(concurrency=concurrency),
    )
    if foreground:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        daemon.serve(settings, timeout_s)
        return
    state = daemon.launch(settings, timeout_s)
    _console.print(f"up: gRPC on 127.0.0.1:{state.ports.envoy}; logs in {run_dir / 'logs'}; `sluiceway down` stops it")


@app.command()
def down(run_dir: RunDir = DEFAULT_RUN_DIR) -> None:
    """Stop the stack: drain, end, clean up."""
    _console.print("down" if daemon.end(run_dir) else "nothing runs")


@app.command()
def status(run_dir: RunDir = DEFAULT_RUN_DIR) -> None:
    """Show what runs, since when, with which memory. Exit code 1 if the stack does not serve."""
    state = daemon.read_state(run_dir)
    if state is None:
        _console.print("nothing runs")
        raise typer.Exit(1)
    table, serves = status_table(state)
    Console().print(table)
    raise typer.Exit(0 if serves else 1)


@app.command()
def gateway(
    config: Annotated[
        Path,
        typer.Option(envvar="SLUICEWAY_GATEWAY_CONFIG", exists=True, dir_okay=False, help="As examples/gateway.yaml."),
    ],
) -> None:
    """Serve the HTTP APIs in front of Triton's gRPC port, until SIGTERM; one process, run as many as you need."""
    from sluiceway.gateway.server import run
    from sluiceway.gateway.settings import load_gateway_settings
    from sluiceway.gateway.tokenizer import ChatTokenizer

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = load_gateway_settings(config)
    run(settings, ChatTokenizer(Path(settings.model_dir)) if settings.model_dir else None)


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Write the figures here (JSON).")] = REPOSITORY
    / ".run"
    / "demo.json",
) -> None:
    """Readers, readers that stopped, and one that vanishes, on the real model; exit 1 if a promise breaks."""
    from sluiceway.cli.demo.run import run_demo  # brings the readers and the live table with it

    raise typer.Exit(0 if run_demo(out) else 1)


def main() -> None:
    """The console script: an error that has an explanation is printed as one, without a stack trace."""
    try:
        app()
    except (StackError, NotInstalledError, OSError, ValueError) as error:
        _console.print(f"sluiceway: {error}", style="red", markup=False, soft_wrap=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
