"""Two things nobody tells a Triton stub: that its server is shutting down, and that it is dead.

Triton unloads a model only after its streams ended, so without the first, finalize() waits for the
streams and the streams wait for nothing. Without the second, a stub outlives a killed server for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SERVER_READY = "/inference.GRPCInferenceService/ServerReady"
_READY = b"\x08\x01"  # ServerReadyResponse{ready: true}
_MISSES = 3  # failed calls in a row before a server that was ready counts as going


class DrainWatch:
    """Calls ``on_exit`` once, when a server that was ready stops being so. Own thread."""

    def __init__(self, address: str, on_exit: Callable[[], None], interval_s: float = 0.5) -> None:
        self._address = address
        self._on_exit = on_exit
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drain-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)

    def _run(self) -> None:
        import grpc  # takes a while to load, and only this thread needs it

        with grpc.insecure_channel(self._address) as channel:
            ask = channel.unary_unary(SERVER_READY)
            was_ready, misses = False, 0
            while not self._stopping.wait(self._interval_s):
                try:
                    answer = ask(b"", timeout=self._interval_s * 4)
                except grpc.RpcError:
                    misses += 1
                else:
                    misses = 0 if answer == _READY else _MISSES
                    was_ready = was_ready or answer == _READY
                if was_ready and misses >= _MISSES:
                    self._on_exit()
                    return


def parent_grpc_address() -> str | None:
    """The gRPC endpoint of the tritonserver that started this stub, from its command line."""
    try:
        arguments = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode().split("\0")
    except (OSError, UnicodeDecodeError):
        return None
    if not Path(arguments[0]).name.startswith("tritonserver"):
        return None
    port = _option(arguments, "--grpc-port") or "8001"
    host = _option(arguments, "--grpc-address") or "127.0.0.1"
    return f"{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"  # noqa: S104 - compared, not bound


def _option(arguments: list[str], name: str) -> str | None:
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
        if argument == name and index + 1 < len(arguments):
            return arguments[index + 1]
    return None


class ParentWatch:
    """Ends this process, and removes the shared memory it was started with, once its parent is gone."""

    def __init__(self, interval_s: float = 0.25) -> None:
        self._parent = os.getppid()
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parent-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            if os.getppid() != self._parent:
                remove_own_regions()
                os._exit(1)


def remove_own_regions() -> None:
    """Unlink the /dev/shm files that Triton named on this process's command line."""
    with suppress(OSError):
        for argument in Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0"):
            region = Path("/dev/shm") / argument.lstrip("/")  # noqa: S108 - POSIX shared memory lives there
            if argument and "/" not in argument.lstrip("/") and region.is_file():
                with suppress(OSError):
                    region.unlink()
