"""A client's network that can be cut: a namespace joined to ours by a veth pair.

Nothing else shows a half-open connection: a socket that is closed, or whose process is killed, says so.
Here every packet is dropped both ways, and the server is left to find out.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

SERVER_ADDRESS = "10.213.77.1"
CLIENT_ADDRESS = "10.213.77.2"
CLONE_NEWNET = 0x40000000
PACKAGES = {"ip": "iproute2", "iptables": "iptables"}


class NetworkUnavailableError(OSError):
    """No network namespace can be made on this machine; the message says what is missing."""


def require_tools() -> None:
    """Raises NetworkUnavailableError, naming what to install, when a namespace cannot be made here."""
    if os.geteuid() != 0:
        raise NetworkUnavailableError(
            "the half-open check makes a network namespace, which needs root: run `sluiceway bench cancel` as root"
        )
    missing = [package for tool, package in PACKAGES.items() if shutil.which(tool) is None]
    if missing:
        raise NetworkUnavailableError(
            f"the half-open check drops packets in a network namespace and needs {' and '.join(missing)}: "
            f"apt-get install -y {' '.join(missing)}"
        )


class CutNetwork:
    """``SERVER_ADDRESS`` is on our side, for a server to listen on; a thread that called ``join()`` connects
    from the other side. Leaving the context removes both; close the sockets made inside first.
    """

    def __init__(self) -> None:
        self.name = f"sluiceway-{os.getpid()}"
        self._link = f"sw{os.getpid()}"

    def __enter__(self) -> Self:
        require_tools()
        try:
            _run("ip", "netns", "add", self.name)
            peer = f"{self._link}p"
            _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", peer, "netns", self.name)
            _run("ip", "address", "add", f"{SERVER_ADDRESS}/30", "dev", self._link)
            _run("ip", "link", "set", self._link, "up")
            self._inside("ip", "address", "add", f"{CLIENT_ADDRESS}/30", "dev", peer)
            self._inside("ip", "link", "set", peer, "up")
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def join(self) -> None:
        """Move the calling thread, for good, into the client's side: its new sockets are made there."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/run/netns/{self.name}").open("rb") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                code = ctypes.get_errno()
                raise OSError(code, f"setns: {os.strerror(code)}")

    def cut(self) -> float:
        """Drop everything from now on; returns the time before the first packet was dropped."""
        at = time.monotonic()
        for chain in ("INPUT", "OUTPUT"):
            self._inside("iptables", "-w", "-I", chain, "-j", "DROP")
        return at

    def restore(self) -> None:
        """Let packets pass again."""
        for chain in ("INPUT", "OUTPUT"):
            self._inside("iptables", "-w", "-F", chain)

    def remove(self) -> None:
        """Undo whatever exists; safe to call twice."""
        subprocess.run(["ip", "link", "del", self._link], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)

    def _inside(self, *command: str) -> None:
        _run("ip", "netns", "exec", self.name, *command)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkUnavailableError(f"{' '.join(command)}: {done.stderr.strip() or 'failed'}")
