"""The background supervisor of ``sluiceway up``: one stack in a process of its own, and the file that names it."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType

import psutil

from sluiceway.cli.ports import Ports, option_name
from sluiceway.cli.stack import Stack, StackError, StackSettings

_log = logging.getLogger(__name__)
_STATE = "state.json"
_PUBLISH_S = 1.0
STOP_TIMEOUT_S = 50.0  # drain 10 + flush 2 + Envoy 3 + gateway 3 + Triton 12, and slack


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the supervisor says about itself. created: the process's start time, against a reused pid."""

    pid: int
    created: float
    ports: Ports
    ready: bool
    restarts: dict[str, int]
    pids: dict[str, int]

    def process(self) -> psutil.Process | None:
        """The supervisor, if it still runs."""
        try:
            process = psutil.Process(self.pid)
            return process if process.create_time() == self.created and process.is_running() else None
        except psutil.NoSuchProcess:
            return None


def read_state(run_dir: Path) -> State | None:
    """None if nothing runs there."""
    try:
        content = json.loads((run_dir / _STATE).read_text())
        state = State(**{**content, "ports": Ports(**content["ports"])})
    except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
        return None
    return state if state.process() is not None else None


def serve(settings: StackSettings, timeout_s: float) -> None:
    """Run the stack in this process until SIGTERM or SIGINT. Raises what Stack.start() raises."""
    _refuse_second(settings.run_dir)
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    stopping = threading.Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        _log.info("%s: stopping", signal.Signals(number).name)
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    stack = Stack(settings)
    try:
        _publish(stack, ready=False)
        stack.start(timeout_s)
        _log.info("serving on port %d", stack.ports.envoy)
        while not stopping.is_set():
            _publish(stack, ready=True)
            stopping.wait(_PUBLISH_S)
    finally:
        stack.stop()
        (settings.run_dir / _STATE).unlink(missing_ok=True)


def launch(settings: StackSettings, timeout_s: float) -> State:
    """Start a supervisor in the background and wait until its stack serves.

    Raises PortTakenError, or StackError with the reason from its log.
    """
    _refuse_second(settings.run_dir)
    settings.ports.require_free()
    logs = settings.run_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / "supervisor.log"
    command = [
        *(sys.executable, "-m", "sluiceway.cli.app", "up", "--foreground"),
        *("--run-dir", str(settings.run_dir.resolve())),
        *("--model-repository", str(settings.model_repository.resolve())),
        *("--concurrency", str(settings.envoy_overrides.concurrency)),
        *("--timeout-s", str(timeout_s)),
        "--gateway" if settings.gateway else "--no-gateway",
    ]
    for field in fields(Ports):
        command += [option_name(field.name), str(getattr(settings.ports, field.name))]
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    while True:
        state = read_state(settings.run_dir)
        if state is not None and state.ready:
            return state
        if supervisor.poll() is not None:
            raise StackError(f"the supervisor ended with status {supervisor.returncode}:\n{log.read_text().strip()}")
        time.sleep(0.1)  # ends: the supervisor gives up after timeout_s


def end(run_dir: Path) -> bool:
    """Stop the supervisor and all that it runs; False if nothing ran. Bounded by STOP_TIMEOUT_S."""
    state = read_state(run_dir)
    process = state.process() if state else None
    if process is None:
        return False
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except psutil.TimeoutExpired:
        process.kill()  # the guards see it and end the servers
        process.wait()
    return True


def _refuse_second(run_dir: Path) -> None:
    state = read_state(run_dir)
    if state is not None and state.pid != os.getpid():
        raise StackError(f"a stack already runs there (supervisor {state.pid}); `sluiceway down` stops it")


def _publish(stack: Stack, *, ready: bool) -> None:
    process = psutil.Process()
    state = State(
        pid=process.pid,
        created=process.create_time(),
        ports=stack.ports,
        ready=ready,
        restarts=stack.restarts(),
        pids=stack.pids(),
    )
    temporary = stack.run_dir / f"{_STATE}.new"
    temporary.write_text(json.dumps(asdict(state)))
    temporary.replace(stack.run_dir / _STATE)  # readers see the old or the new one, never half
