"""The parent's side of the listener process: starts it, reads its news, starts it again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sluiceway.core.record import Record
from sluiceway.delivery.listener import EXIT_PORT_TAKEN
from sluiceway.delivery.pipe_format import Status, decode

_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 2.0
_START_TIMEOUT_S = 15.0


class ListenerError(RuntimeError):
    """The listener could not start; the message names the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryStatistics:
    """``records``: what Envoy sent; ``changes``: what of it was news. ``last_record_age_s``: of any news or status."""

    records: int
    changes: int
    ended: int
    expired: int
    listener_restarts: int
    last_record_age_s: float | None


class DeliverySource:
    """Hands lists of records to ``on_records`` on its own thread, which must not block.

    python: interpreter of the environment that has grpcio and xds-protos; inside a Triton stub
    ``sys.executable`` is not it. ``pid`` is the listener's, None while it is down.
    """

    def __init__(
        self,
        listen: str,
        record_timeout_s: float,
        on_records: Callable[[list[Record]], None],
        python: str | None = None,
    ) -> None:
        self._listen = listen
        self._command = [
            python or sys.executable,
            "-m",
            "sluiceway.delivery.listener",
            *("--listen", listen),
            *("--record-timeout-s", str(record_timeout_s)),
        ]
        self._on_records = on_records
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._port_taken = False
        self._thread = threading.Thread(target=self._run, name="delivery-source", daemon=True)
        self._records_before = self._records_now = 0
        self._changes = self._ended = self._expired = self._restarts = 0
        self._last_line_at: float | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Return once the listener listens. Raises ListenerError if it cannot."""
        self._thread.start()
        self._ready.wait(_START_TIMEOUT_S)
        if self._port_taken:
            self.stop()
            raise ListenerError(f"delivery.listen: cannot listen on {self._listen}: the address is taken")
        if self._last_line_at is None:
            self.stop()
            raise ListenerError(f"delivery.listen: the listener for {self._listen} did not start; see the log")

    def stop(self) -> None:
        self._stopping.set()
        process = self._process
        if process is not None:
            process.terminate()
        self._thread.join(timeout=5.0)

    def statistics(self, now: float) -> DeliveryStatistics:
        last = self._last_line_at
        return DeliveryStatistics(
            records=self._records_before + self._records_now,
            changes=self._changes,
            ended=self._ended,
            expired=self._expired,
            listener_restarts=self._restarts,
            last_record_age_s=None if last is None else now - last,
        )

    def _run(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while not self._stopping.is_set():
            started = time.monotonic()
            with self._spawn() as process:
                self._process = process
                if self._stopping.is_set():  # stop() may have looked before there was a process
                    process.terminate()
                assert process.stdout is not None  # asked for in _spawn
                self._read(process.stdout)
            self._port_taken = process.returncode == EXIT_PORT_TAKEN
            if self._last_line_at is None:
                self._ready.set()  # it never listened: start() has to know
                return
            if time.monotonic() - started > _MAX_BACKOFF_S:
                backoff_s = _FIRST_BACKOFF_S
            self._records_before, self._records_now = self._records_before + self._records_now, 0
            if not self._stopping.wait(backoff_s):
                self._restarts += 1
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    def _spawn(self) -> subprocess.Popen[bytes]:
        package_root = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([package_root, os.environ.get("PYTHONPATH", "")])}
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def _read(self, pipe: IO[bytes]) -> None:
        """Until the pipe closes. What one read brings goes out as one batch."""
        rest = b""
        while chunk := os.read(pipe.fileno(), 1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            items = [decode(line) for line in lines]
            self._last_line_at = time.monotonic()
            self._ready.set()
            records = [item for item in items if isinstance(item, Record)]
            for item in items:
                if isinstance(item, Status):
                    self._records_now = item.records
            self._changes += len(records)
            self._ended += sum(record.ended for record in records)
            self._expired += sum(record.expired for record in records)
            if records:
                self._on_records(records)
