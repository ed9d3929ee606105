"""Two things nobody tells a Triton stub: that its server is shutting down, and that it is dead.

Triton unloads a model only after its streams ended, so without the first, finalize() waits for the
streams and the streams wait for nothing. Without the second, a stub outlives a killed server for ever.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SERVER_READY = "/inference.GRPCInferenceService/ServerReady"
_READY = b"\x08\x01"  # ServerReadyResponse{ready: true}
_DEFAULT_EXIT_TIMEOUT_S = 30.0
_MISSES = 3  # failed calls in a row before a server that was ready counts as going


class DrainWatch:
    """Calls ``on_exit`` once, when a server that was ready stops being so. Own thread."""

    def __init__(self, address: str, on_exit: Callable[[], None], interval_s: float = 0.5) -> None:
        self._address = address
        self._on_exit = on_exit
        self._interval_s = interval_s
        self._was_ready = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drain-watch", daemon=True)

    def saw_request(self) -> None:
        """A server that hands us requests is ready, even if it goes before it was asked."""
        self._was_ready = True

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
            misses = 0
            while not self._stopping.wait(self._interval_s):
                try:
                    answer = ask(b"", timeout=self._interval_s * 4)
                except grpc.RpcError as error:
                    # An overloaded server answers late; one that goes has closed its port.
                    misses += error.code() is grpc.StatusCode.UNAVAILABLE
                else:
                    misses = 0 if answer == _READY else _MISSES
                    self._was_ready = self._was_ready or answer == _READY
                if self._was_ready and misses >= _MISSES:
                    self._on_exit()
                    return


def _server_arguments() -> list[str]:
    """The command line of the tritonserver that started this stub; empty if something else did."""
    try:
        arguments = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode().split("\0")
    except (OSError, UnicodeDecodeError):
        return []
    return arguments if Path(arguments[0]).name.startswith("tritonserver") else []


def parent_grpc_address() -> str | None:
    """The gRPC endpoint of the tritonserver that started this stub, from its command line."""
    arguments = _server_arguments()
    if not arguments:
        return None
    port = _option(arguments, "--grpc-port") or "8001"
    host = _option(arguments, "--grpc-address") or "127.0.0.1"
    return f"{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"  # noqa: S104 - compared, not bound


def parent_exit_timeout_s() -> float:
    """Triton's --exit-timeout-secs as it was given to our server, else Triton's default."""
    given = _option(_server_arguments(), "--exit-timeout-secs")
    return float(given) if given is not None and given.isdigit() else _DEFAULT_EXIT_TIMEOUT_S


def end_with_parent() -> None:
    """End the server that does not leave, and this process; takes the shared memory along."""
    remove_own_regions()
    if _server_arguments():
        os.kill(os.getppid(), signal.SIGKILL)
    os._exit(1)


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
