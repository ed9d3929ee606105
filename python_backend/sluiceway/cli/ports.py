"""The ports of one stack, all on the loopback address."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass, fields

LOOPBACK = "127.0.0.1"
# Below Linux's range for outgoing connections (32768 and up), whose sockets could take a port at any time.
_FREE_RANGE = range(20_000, 32_000)


class PortTakenError(OSError):
    """A port of the stack is in use; the message names the port and the option that changes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """envoy: where clients connect. als: access log records. admin: the backend's statistics. gateway: HTTP."""

    envoy: int
    envoy_admin: int
    triton_grpc: int
    triton_metrics: int
    als: int
    admin: int
    gateway: int

    def __post_init__(self) -> None:
        seen: dict[int, str] = {}
        for field in fields(self):
            port = getattr(self, field.name)
            option = option_name(field.name)
            if not isinstance(port, int) or not 1 <= port <= 65_535:
                raise ValueError(f"{option} is {port!r}; a port is a number from 1 to 65535")
            if port in seen:
                raise ValueError(f"{option} is {port}, which is also {seen[port]}; every port needs its own number")
            seen[port] = option

    @classmethod
    def default(cls) -> Ports:
        return cls(
            envoy=8080,
            envoy_admin=9901,
            triton_grpc=8001,
            triton_metrics=8002,
            als=18002,
            admin=18003,
            gateway=8090,
        )

    @classmethod
    def free(cls) -> Ports:
        """Ports that nobody listens on now."""
        found = free_ports()
        return cls(**{field.name: next(found) for field in fields(cls)})

    def require_free(self) -> None:
        """Raises PortTakenError for the first port that somebody listens on."""
        for field in fields(self):
            port = getattr(self, field.name)
            if not is_free(port):
                raise PortTakenError(
                    f"port {port} ({field.name}) is in use on {LOOPBACK}; choose another with {option_name(field.name)}"
                )


def option_name(field_name: str) -> str:
    return f"--{field_name.replace('_', '-')}-port"


def free_ports() -> Iterator[int]:
    """Ports that nobody listens on now, in a random order, each once."""
    return (port for port in random.sample(_FREE_RANGE, len(_FREE_RANGE)) if is_free(port))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Connections of an earlier run in TIME_WAIT must not count; a listener still does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True
