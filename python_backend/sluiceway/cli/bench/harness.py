"""What every scenario gets and gives back: a context that starts stacks and shows progress, and a result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sluiceway.cli.bench.promise import Promise
from sluiceway.cli.envoy import EnvoyOverrides
from sluiceway.cli.setup import REPOSITORY
from sluiceway.cli.stack import Stack, StackSettings

# Over HTTP, a stream is named by Envoy's request id; the scenarios look their streams up by name.
HTTP_STACK = {"gateway": True, "envoy_overrides": EnvoyOverrides(keep_request_id=True)}
NAIVE_MODELS = REPOSITORY / "tests" / "bench" / "model_repository"


@dataclass(kw_only=True)
class ScenarioResult:
    """settings: what was asked of the stack and the clients. arms: raw figures, one entry an arm.

    plot: draws the figures; called with an empty matplotlib figure, saved beside the JSON.
    """

    settings: dict[str, Any]
    arms: dict[str, Any]
    promises: list[Promise]
    plot: Callable[[Figure], None] | None = None


@dataclass(kw_only=True)
class BenchContext:
    """run_dir: scratch for logs of the stacks. quick: a shorter run of the same promises.

    protocol: what clients speak (readers/protocols.py).
    """

    run_dir: Path
    quick: bool = False
    protocol: str = "grpc"
    console: Console = field(default_factory=lambda: Console(stderr=True))
    _stacks: int = 0

    def seconds(self, full: float, quick: float) -> float:
        return quick if self.quick else full

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def note(self, text: str) -> None:
        """One line of progress."""
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {text}")

    def sleep(self, seconds: float, what: str) -> None:
        """Wait, with a bar that says for what."""
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        deadline = time.monotonic() + seconds
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(what, total=seconds)
            while (left := deadline - time.monotonic()) > 0:
                progress.update(task, completed=seconds - left)
                time.sleep(min(0.25, left))

    def wait_until(self, condition: Callable[[], bool], what: str, *, timeout_s: float = 60.0) -> bool:
        """Poll ``condition`` with a bar on show; False, and a note, if it did not come true in time."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                self.note(f"[yellow]not within {timeout_s:.0f} s:[/] {what}")
                return False
            self.sleep(0.5, what)
        return True

    @contextmanager
    def stack(self, name: str, config: Mapping[str, Any], **settings: Any) -> Iterator[Stack]:
        """Our stack, ``config`` merged over sluiceway.yaml; stopped whatever happens."""
        self._stacks += 1
        if self.protocol != "grpc":
            settings = HTTP_STACK | settings
        settings = {"run_dir": self.run_dir / f"{self._stacks:02d}-{name}", "config": config, **settings}
        self.note(f"starting the stack: {name}")
        stack = Stack(StackSettings(**settings))
        try:
            stack.start()
            yield stack
        finally:
            stack.stop()

    @contextmanager
    def naive_stack(self, name: str = "naive", **settings: Any) -> Iterator[Stack]:
        """The baseline: thread per request, send in a loop, the same Envoy in front."""
        options = {"model_repository": NAIVE_MODELS, "with_backend_admin": False, **settings}
        with self.stack(name, {}, **options) as stack:
            yield stack


def scripted(step_s: float = 0.02, **flow_control: Any) -> dict[str, Any]:
    """Config for the scripted engine: one token a stream every ``step_s``, nobody waits for a batch slot or KV."""
    return {
        "engine": {
            "kind": "scripted",
            "step_s": step_s,
            "max_batch_streams": 256,
            "kv_blocks": 200_000,  # run to completion keeps all it makes
            "context_tokens": 131_072,
        },
        "flow_control": flow_control,
        "admission": {"max_streams": 2048},
    }
