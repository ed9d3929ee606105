"""The parent's side of the listener process: starts it, reads its news, starts it again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sluiceway.core.record import Record
from sluiceway.delivery.pipe_format import decode
from sluiceway.delivery.roll import Roll

_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 2.0
_START_TIMEOUT_S = 15.0
_STOP_TIMEOUT_S = 5.0


class ListenerError(RuntimeError):
    """The listener could not start; the message names the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryStatistics:
    """records: what Envoy sent, over all listeners. changes: what of it was news.

    last_record_age_s: None before the first record; up to 1 s too high while no stream changes.
    pipe_lag_ms: how long the listener's last batch waited for us.
    """

    records: int
    changes: int
    ended: int
    expired: int
    listener_restarts: int
    last_record_age_s: float | None
    pipe_lag_ms: int


class DeliverySource:
    """Hands lists of records to ``on_records`` on its own thread; the callback must neither block nor raise.

    listen: HOST:PORT for Envoy's access log. python: an interpreter that can import grpc and envoy's
    protos; default ``find_python()``. ``pid`` is the listener's, None while it is down.
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
            python or find_python(),
            *("-m", "sluiceway.delivery.listener"),
            *("--listen", listen),
            *("--record-timeout-s", str(record_timeout_s)),
        ]
        self._on_records = on_records
        self._roll = Roll(record_timeout_s)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._first_line = threading.Event()
        self._start_is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="delivery-source", daemon=True)
        self._records_before = self._records_now = 0
        self._changes = self._ended = self._expired = self._restarts = self._pipe_lag_ms = 0
        self._last_record_at: float | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Return once the listener listens. Raises ListenerError if it cannot."""
        self._thread.start()
        self._start_is_over.wait(_START_TIMEOUT_S)
        if not self._first_line.is_set():
            self.stop()
            raise ListenerError(
                f"delivery.listen: no access log listener on {self._listen}: the port is taken, or the address is not "
                "this machine's, or the listener could not run (its own words are in the log)"
            )

    def stop(self) -> None:
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()
        self._thread.join(_STOP_TIMEOUT_S)

    def statistics(self, now: float) -> DeliveryStatistics:
        last = self._last_record_at
        return DeliveryStatistics(
            records=self._records_before + self._records_now,
            changes=self._changes,
            ended=self._ended,
            expired=self._expired,
            listener_restarts=self._restarts,
            last_record_age_s=None if last is None else max(0.0, now - last),
            pipe_lag_ms=self._pipe_lag_ms,
        )

    def _run(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while not self._stopping.is_set():
            started = time.monotonic()
            self._run_listener()
            self._start_is_over.set()
            if not self._first_line.is_set():  # it never listened; start() says so
                return
            self._records_before, self._records_now = self._records_before + self._records_now, 0
            if time.monotonic() - started > _MAX_BACKOFF_S:
                backoff_s = _FIRST_BACKOFF_S
            if not self._stopping.wait(backoff_s):
                self._restarts += 1
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    def _run_listener(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        with subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
        ) as process:
            self._process = process
            if self._stopping.is_set():  # stop() may have looked before there was a process
                process.terminate()
            assert process.stdout is not None  # asked for above
            try:
                self._read(process.stdout)
            except ValueError as problem:
                print(f"sluiceway delivery: {problem}; starting another listener", file=sys.stderr, flush=True)
            finally:
                process.kill()  # its pipe is closed, or it speaks another language

    def _read(self, pipe: IO[bytes]) -> None:
        """Until the pipe closes. Raises ValueError for a line that is not ours."""
        rest = b""
        is_first = True
        while chunk := os.read(pipe.fileno(), 1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if is_first:
                    is_first = False
                    self._roll.call(time.monotonic())
                self._take(line)

    def _take(self, line: bytes) -> None:
        batch = decode(line)
        now = time.monotonic()
        if batch.records > self._records_now:
            self._last_record_at = now
            self._roll.reached(now)
        self._records_now = batch.records
        self._pipe_lag_ms = batch.lag_ms
        self._roll.take(batch.news)
        news = [*batch.news, *self._roll.missing(now)]
        self._changes += len(batch.news)
        self._ended += sum(record.ended for record in news)
        self._expired += sum(record.expired for record in news)
        self._first_line.set()
        self._start_is_over.set()
        if news:
            self._on_records(news)


def find_python() -> str:
    """The interpreter of the environment that this code runs in.

    Inside a Triton stub ``sys.executable`` is not one: the virtual environment's is taken then, else the
    first python3 on PATH. Raises ListenerError if there is none.
    """
    folders = (os.environ.get("VIRTUAL_ENV"), sys.prefix, sys.exec_prefix)
    candidates = [sys.executable, *(f"{folder}/bin/python3" for folder in folders if folder), shutil.which("python3")]
    for candidate in candidates:
        if candidate and Path(candidate).name.startswith("python") and os.access(candidate, os.X_OK):
            return candidate
    raise ListenerError("no Python interpreter for the access log listener: none in VIRTUAL_ENV, none on PATH")
