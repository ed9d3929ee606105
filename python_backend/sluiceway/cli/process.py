"""A server under a guard: nothing of it survives ``kill()``, nor this process's own death."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_GUARD = Path(__file__).with_name("guard.py")
_LOG_BYTES = 64 * 1024
_LOG_LINES = 6
_LINE_CHARACTERS = 1000
# Triton's "E1201 ..." and "error: ...", its stub's report of a model's exception, Envoy's "[error][...]".
_COMPLAINT = re.compile(
    r"^E\d{4} (?!.*CudaDriverHelper)|^error: |Failed to initialize Python stub|\[(error|critical)\]"
)


class GuardedProcess:
    """One running server. ``shm_prefix``: regions in /dev/shm to remove when it ends ("" for none)."""

    def __init__(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None, shm_prefix: str = ""
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), shm_prefix, *command],
                stdin=subprocess.PIPE,  # closes with this process, however it ends
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal goes to the supervisor alone
            )
        self._server: psutil.Process | None = None

    @property
    def returncode(self) -> int | None:
        """None while the server (or its clean-up) runs."""
        return self._guard.poll()

    @property
    def server(self) -> psutil.Process | None:
        """The server itself, or None before it started and after it ended."""
        if self._server is None:
            try:
                children = psutil.Process(self._guard.pid).children()
            except psutil.NoSuchProcess:
                return None
            self._server = children[0] if children else None
        if self._server is None or not is_alive(self._server):
            return None
        return self._server

    def descendants(self) -> list[psutil.Process]:
        """Living processes below the server."""
        server = self.server
        if server is None:
            return []
        try:
            return [process for process in server.children(recursive=True) if is_alive(process)]
        except psutil.NoSuchProcess:
            return []

    def terminate(self) -> None:
        """Ask the server to end (SIGTERM)."""
        server = self.server
        if server is not None:
            try:
                server.terminate()
            except psutil.NoSuchProcess:
                pass

    def wait(self, timeout_s: float) -> bool:
        """True if the server and all of its descendants ended within ``timeout_s``."""
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the server and its descendants at once and clean up. Harmless after they ended."""
        assert self._guard.stdin is not None
        try:
            self._guard.stdin.close()
        except BrokenPipeError:
            pass
        self._guard.wait()

    def why(self) -> str:
        """The log's lines that complain, or else its end."""
        lines = self.log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").splitlines()
        complaints = [line for line in lines if _COMPLAINT.search(line)]
        return "\n".join(line[:_LINE_CHARACTERS] for line in (complaints or lines)[-_LOG_LINES:])


def is_alive(process: psutil.Process) -> bool:
    """False for zombies too: a dead stub stays one as long as Triton does not look."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
