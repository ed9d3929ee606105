"""Keeps one server running: starts it again when it, or a process that it cannot live without, dies."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from sluiceway.cli.process import GuardedProcess, is_alive

_log = logging.getLogger(__name__)
_POLL_S = 0.2
_STUB = "triton_python_b"  # the kernel keeps 15 characters of the name; psutil may complete it


@dataclass(slots=True)
class Backoff:
    """Waits longer after every quick death, up to ``longest_s``; a life of ``good_life_s`` forgives all."""

    shortest_s: float = 0.5
    longest_s: float = 10.0
    good_life_s: float = 30.0
    deaths: int = 0

    def after_death(self, lived_s: float) -> float:
        """Seconds to wait before the next start."""
        self.deaths = 1 if lived_s >= self.good_life_s else self.deaths + 1
        return float(min(self.longest_s, self.shortest_s * 2 ** min(self.deaths - 1, 16)))


class Keeper:
    """One server and the thread that watches it once ``keep()`` was called."""

    def __init__(self, name: str, start: Callable[[], GuardedProcess]) -> None:
        self.name = name
        self.restarts = 0
        self._start = start
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"keep-{name}", daemon=True)
        self.process = start()

    def keep(self) -> None:
        self._thread.start()

    def release(self) -> None:
        """Stop watching; the server itself goes on."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def is_kept(self) -> bool:
        return self._thread.is_alive()

    @property
    def stub(self) -> psutil.Process | None:
        """Triton's Python stub, if this server has a living one."""
        server = self.process.server
        if server is None:
            return None
        try:
            return next(
                (child for child in server.children() if child.name().startswith(_STUB) and is_alive(child)), None
            )
        except psutil.NoSuchProcess:
            return None

    def _watch(self) -> None:
        backoff = Backoff()
        started = time.monotonic()
        stub = self.stub
        while not self._stopping.wait(_POLL_S):
            # Triton 24.10 goes on reporting ready without its stub, so the stub is watched too.
            if self.process.returncode is None and (stub is None or is_alive(stub)):
                stub = stub or self.stub
                continue
            what = self.name if self.process.returncode is not None else f"{self.name}'s Python stub"
            self.process.kill()
            delay = backoff.after_death(time.monotonic() - started)
            _log.warning("%s died (status %s); starting it again in %.1f s", what, self.process.returncode, delay)
            if self._stopping.wait(delay):
                return
            self.process = self._start()
            self.restarts += 1
            started, stub = time.monotonic(), None
