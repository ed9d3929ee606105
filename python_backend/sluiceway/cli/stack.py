"""Triton, Envoy and the gateway, started, watched and stopped together."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil

from sluiceway.cli import envoy, gateway_process, health, shm, triton
from sluiceway.cli.envoy import EnvoyOverrides
from sluiceway.cli.ports import Ports
from sluiceway.cli.process import GuardedProcess
from sluiceway.cli.setup import REPOSITORY, Tools
from sluiceway.cli.supervisor import Keeper

_T = TypeVar("_T")
_numbers = itertools.count()
_DRAIN_TIMEOUT_S = 10.0
_FLUSH_TIMEOUT_S = 2.0  # for Envoy to pass the last frames to clients that read
_ENVOY_EXIT_S = 3.0
_GATEWAY_EXIT_S = 3.0  # its streams ended in the drain
_EXIT_TIMEOUT_S = 8  # Triton's own; drained before, it needs about one second
_EXIT_SLACK_S = 4.0


class StackError(RuntimeError):
    """The stack did not come up; the message holds the end of the log that says why."""


@dataclass(kw_only=True)
class StackSettings:
    """run_dir: logs, rendered configurations; made if missing. config: merged over the model's sluiceway.yaml.

    with_backend_admin: False for a model that is not ours (no statistics, no drain). gateway: whether the HTTP
    side runs; gateway_settings: merged over its settings. triton_http: Triton's own HTTP frontend, on the gateway's
    port. envoy_config: makes Envoy's configuration, instead of ours.
    """

    run_dir: Path
    model_repository: Path = REPOSITORY / "model_repository"
    config: Mapping[str, Any] = field(default_factory=dict)
    ports: Ports = field(default_factory=Ports.free)
    with_backend_admin: bool = True
    gateway: bool = False
    gateway_settings: Mapping[str, Any] = field(default_factory=dict)
    envoy_overrides: EnvoyOverrides = field(default_factory=EnvoyOverrides)
    triton_http: bool = False
    envoy_config: Callable[[Ports], Mapping[str, Any]] | None = None


class Stack:
    """A running stack as a context manager.

    A dead stub, Triton, gateway or Envoy is started again. Servers die with this process. Not thread safe, except
    for the read-only methods.
    """

    def __init__(self, settings: StackSettings) -> None:
        self.settings = settings
        self.ports = settings.ports
        self.run_dir = settings.run_dir.resolve()
        self._shm_prefix = f"{shm.own_prefix()}{next(_numbers)}-"
        self._keepers: dict[str, Keeper] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self, timeout_s: float = 120) -> None:
        """Start every part and wait until all serve.

        Raises PortTakenError, NotInstalledError, ValueError (configuration) or StackError; nothing runs then.
        """
        tools = Tools.find()
        self.ports.require_free()
        logs = self.run_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        shm.remove_abandoned()
        starters = self._starters(tools, logs)
        try:
            for name, start in starters.items():
                self._keepers[name] = Keeper(name, start)
            self.wait_ready(timeout_s)
        except BaseException:
            self.stop()
            raise
        for keeper in self._keepers.values():
            keeper.keep()

    def wait_ready(self, timeout_s: float = 120) -> None:
        """Raises StackError if the stack does not serve within ``timeout_s`` or a server ends meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not self.is_ready():
            for name, keeper in self._keepers.items():
                status = keeper.process.returncode
                if status is not None and not keeper.is_kept:
                    raise StackError(f"{name} ended with status {status}:\n{keeper.process.why()}")
            if time.monotonic() > deadline:
                waiting = ", ".join(name for name, ready in self.readiness().items() if not ready)
                raise StackError(f"{waiting}: not ready after {timeout_s:.0f} s; logs in {self.run_dir / 'logs'}")
            time.sleep(0.1)

    def is_ready(self) -> bool:
        return all(self.readiness().values())

    def readiness(self) -> dict[str, bool]:
        """Which part serves."""
        parts = {
            "envoy": health.envoy_is_ready(self.ports.envoy_admin),
            "tritonserver": health.triton_is_ready(self.ports.triton_grpc),
        }
        if self.settings.gateway:
            parts["gateway"] = health.gateway_is_ready(self.ports.gateway)
        if self.settings.with_backend_admin:
            parts["backend"] = health.backend_is_ready(self.ports.admin)
        return parts

    def stop(self) -> None:
        """Drain, then end everything; bounded in time, leaves no process and no shared memory. Idempotent."""
        for keeper in self._keepers.values():
            keeper.release()
        if self._keepers and self.settings.with_backend_admin:
            self._drain()
        # Triton last: open connections of the others would hold up its exit.
        for name, patience_s in (
            ("envoy", _ENVOY_EXIT_S),
            ("gateway", _GATEWAY_EXIT_S),
            ("tritonserver", _EXIT_TIMEOUT_S + _EXIT_SLACK_S),
        ):
            ending = self._keepers.pop(name, None)
            if ending is not None:
                ending.process.terminate()
                ending.process.wait(patience_s)
                ending.process.kill()
        shm.remove(self._shm_prefix)

    def pids(self) -> dict[str, int]:
        """Of what exists now: tritonserver, stub, listener, envoy, gateway."""
        return {name: process.pid for name, process in self._processes().items()}

    def rss_bytes(self) -> dict[str, int]:
        """Resident memory of each process in ``pids()``."""
        return _each(self._processes(), lambda process: int(process.memory_info().rss))

    def restarts(self) -> dict[str, int]:
        return {name: keeper.restarts for name, keeper in self._keepers.items()}

    def statistics(self) -> dict[str, Any]:
        """The backend's GET /statistics. Raises OSError while the backend is away."""
        return health.get_json(self.ports.admin, "/statistics")

    def finished(self, since: int = 0) -> dict[str, Any]:
        """The backend's GET /finished. Raises OSError while the backend is away."""
        return health.get_json(self.ports.admin, f"/finished?since={since}")

    def _starters(self, tools: Tools, logs: Path) -> dict[str, Callable[[], GuardedProcess]]:
        """How each server starts, in this order."""
        settings = self.settings
        envoy_config = envoy.write_config(self.run_dir, self.ports, settings.envoy_overrides, settings.envoy_config)
        model_config = triton.write_model_config(settings.model_repository, self.run_dir, self.ports, settings.config)
        triton_command = triton.command(
            tools,
            repository=settings.model_repository.resolve(),
            backends=triton.assemble_backend(tools, self.run_dir),
            ports=self.ports,
            shm_prefix=self._shm_prefix,
            exit_timeout_s=_EXIT_TIMEOUT_S,
            http=settings.triton_http,
        )
        environment = triton.environment(tools, model_config)
        envoy_command = envoy.command(tools, envoy_config, settings.envoy_overrides)

        def start_triton() -> GuardedProcess:
            return GuardedProcess(
                triton_command, log=logs / "triton.log", environment=environment, shm_prefix=self._shm_prefix
            )

        starters = {
            "tritonserver": start_triton,
            "envoy": lambda: GuardedProcess(envoy_command, log=logs / "envoy.log"),
        }
        if settings.gateway:
            gateway_config = gateway_process.write_config(
                self.run_dir, self.ports, model_config, settings.gateway_settings
            )
            gateway_command = gateway_process.command(gateway_config)
            starters["gateway"] = lambda: GuardedProcess(gateway_command, log=logs / "gateway.log")
        return starters

    def _drain(self) -> None:
        """Let every stream end with a finish reason, and let Envoy pass it on. Best effort, bounded."""
        try:
            health.request(self.ports.admin, "/drain", method="POST", timeout_s=_DRAIN_TIMEOUT_S)
            deadline = time.monotonic() + _FLUSH_TIMEOUT_S
            while health.envoy_open_streams(self.ports.envoy_admin) and time.monotonic() < deadline:
                time.sleep(0.05)
        except (OSError, ValueError):
            pass  # a dead backend or Envoy has nothing to drain

    def _processes(self) -> dict[str, psutil.Process]:
        found: dict[str, psutil.Process] = {}
        for name, keeper in self._keepers.items():
            if keeper.process.server is not None:
                found[name] = keeper.process.server
        triton_keeper = self._keepers.get("tritonserver")
        if triton_keeper is None:
            return found
        stub = triton_keeper.stub
        if stub is not None:
            found["stub"] = stub
        for process in triton_keeper.process.descendants():
            if "sluiceway.delivery.listener" in _each({"": process}, lambda each: each.cmdline()).get("", ()):
                found["listener"] = process
        return found


def _each(processes: Mapping[str, psutil.Process], read: Callable[[psutil.Process], _T]) -> dict[str, _T]:
    """``read`` of every process that still exists."""
    values = {}
    for name, process in processes.items():
        try:
            values[name] = read(process)
        except psutil.NoSuchProcess:
            continue
    return values
