"""Runs one server so that nothing of it outlives its supervisor: ``guard.py SHM_PREFIX COMMAND...``.

Standard library only and started without site-packages, for it runs beside every server. Standard input is a
pipe from the supervisor: when it closes (stop, crash or kill -9 of the supervisor), or when the server ends, the
guard kills what is left of the server's process group, removes its shared memory and ends. Exit status: the
server's, or 128 + signal.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(shm_prefix: str, command: list[str]) -> int:
    libc = ctypes.CDLL(None)
    # Orphans of the server (Triton's stub, its listener) become children of this process.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # two sockets per stream in Envoy

    def die_with_guard() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=die_with_guard,  # noqa: PLW1509 - this process has one thread
    )
    poller = select.poll()
    server_ended = os.pidfd_open(server.pid)
    poller.register(server_ended, select.POLLIN)
    poller.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    poller.poll()

    _kill_group(server.pid)
    status = server.wait()
    _kill_adopted()
    if shm_prefix:
        for region in Path("/dev/shm").glob(f"{shm_prefix}*"):  # noqa: S108
            region.unlink(missing_ok=True)
    return status if status >= 0 else 128 - status


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all gone


def _kill_adopted() -> None:
    """Kill and reap every descendant that the server left to us, also those in sessions of their own."""
    while True:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if not children:
            return
        for child in map(int, children):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
