"""Two hundred readers that are stuck and then leave at once: does the server survive it?

Responses that still queue in Triton 24.10 when their clients leave can abort it. So what a backend may
hand over and nobody takes decides whether the process lives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from sluiceway.cli.bench.departures import connection_settings, finished_entries, wait_until, wait_until_idle
from sluiceway.cli.bench.readers import Leave, Never, Normal, ReaderLoop, StreamRequest
from sluiceway.cli.process import is_alive
from sluiceway.cli.stack import Stack
from sluiceway.core.states import State

LEAVES = (Leave.RST_STREAM, Leave.FIN, Leave.TCP_RST)
CRASH_SHOWS_WITHIN_S = 2.0
RETURN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When the crowd leaves: once ``wait`` returned."""

    name: str
    max_tokens: int
    wait: Callable[[Stack, list[str]], object]


def _until_active(stack: Stack, ids: list[str]) -> None:
    def holds(stream: Mapping[str, Any]) -> bool:
        return bool(stream["state"] == "streaming" and stream["produced"]["tokens"] >= 3)

    wait_until(stack, ids, holds, "a crowd that streams")


def _until_paused(stack: Stack, ids: list[str]) -> None:
    wait_until(stack, ids, lambda stream: State(stream["state"]).is_out_of_batch, "a crowd that is paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    moment: str
    leave: str
    shared_connection: bool
    clients: int
    crashed: bool
    answered_after_s: float | None


def moments(paused_tokens: int, finished_tokens: int) -> tuple[Moment, ...]:
    """paused_tokens: more than a reader that never reads is given. finished_tokens: fits into what
    Envoy and we may hold, but not into the client's window.
    """
    return (
        Moment(name="active", max_tokens=paused_tokens, wait=_until_active),
        Moment(name="paused", max_tokens=paused_tokens, wait=_until_paused),
        Moment(name="finished", max_tokens=finished_tokens, wait=finished_entries),
    )


def rounds(
    stack: Stack, plan: list[tuple[Moment, Leave, bool]], clients: int, protocol: str = "grpc"
) -> Iterator[Round]:
    """Run the rounds one by one. Raises TimeoutError if the crowd cannot be brought about."""
    for number, (moment, leave, shared) in enumerate(plan):
        ids = [f"crowd-{number}-{client}" for client in range(clients)]
        with ReaderLoop() as loop:
            crowd = Crowd(loop, stack, ids, moment.max_tokens, shared=shared, protocol=protocol)
            moment.wait(stack, ids)
            crashed, answered_after_s = leave_and_look(stack, loop, crowd, leave)
        if answered_after_s is not None:
            wait_until_idle(stack)
        yield Round(
            moment=moment.name,
            leave=leave,
            shared_connection=shared,
            clients=clients,
            crashed=crashed,
            answered_after_s=answered_after_s,
        )


def naive_rounds(stack: Stack, plan: list[tuple[Leave, bool]], clients: int, fill_s: float) -> Iterator[Round]:
    """The same crowd in front of a model that sends whatever it makes; it leaves after ``fill_s``.

    Ends early when the server hangs: nothing more can be asked of it.
    """
    for number, (leave, shared) in enumerate(plan):
        ids = [f"naive-{number}-{client}" for client in range(clients)]
        with ReaderLoop() as loop:
            crowd = Crowd(loop, stack, ids, 100_000, shared=shared)
            time.sleep(fill_s)
            crashed, answered_after_s = leave_and_look(stack, loop, crowd, leave)
        yield Round(
            moment="active",
            leave=leave,
            shared_connection=shared,
            clients=clients,
            crashed=crashed,
            answered_after_s=answered_after_s,
        )
        if answered_after_s is None:
            return


class Crowd:
    """Clients with one stream each, on a connection each or all on one; none of them ever reads."""

    def __init__(
        self,
        loop: ReaderLoop,
        stack: Stack,
        ids: list[str],
        max_tokens: int,
        *,
        shared: bool,
        protocol: str = "grpc",
    ) -> None:
        self._loop = loop
        shared_connection = loop.connect(connection_settings(stack, protocol)) if shared else None
        self._pairs = []
        for name in ids:
            connection = shared_connection or loop.connect(connection_settings(stack, protocol))
            request = StreamRequest(prompt="river", max_tokens=max_tokens, sampling={"temperature": 0}, client_id=name)
            self._pairs.append((connection, loop.open(connection, request, Never())))

    def leave(self, how: Leave) -> None:
        """All in one turn of the loop, so that the server hears of it at once."""

        def everybody() -> None:
            for connection, stream in self._pairs:
                if not stream.ended:
                    connection.leave(stream, how)

        self._loop.call(everybody)


def leave_and_look(stack: Stack, loop: ReaderLoop, crowd: Crowd, leave: Leave) -> tuple[bool, float | None]:
    """All leave; did tritonserver or the stub die, and after how long did a new request get its answer?

    No answer within a minute (None) counts as a crash: a server that hangs in its own abort is gone too.
    """
    before = _server_processes(stack)
    crowd.leave(leave)
    left_at = time.monotonic()
    crashed = False
    while time.monotonic() < left_at + CRASH_SHOWS_WITHIN_S and not crashed:
        crashed = not all(is_alive(process) for process in before)
        time.sleep(0.05)
    answered_at = _answered(stack, loop)
    crashed = crashed or answered_at is None or not all(is_alive(process) for process in before)
    return crashed, None if answered_at is None else answered_at - left_at


def _server_processes(stack: Stack) -> list[psutil.Process]:
    pids = stack.pids()
    return [psutil.Process(pids[name]) for name in ("tritonserver", "stub") if name in pids]


def _answered(stack: Stack, loop: ReaderLoop) -> float | None:
    """When a small request came back complete. None if none does within a minute."""
    deadline = time.monotonic() + RETURN_TIMEOUT_S
    while time.monotonic() < deadline:
        request = StreamRequest(prompt="river", max_tokens=2, client_id="probe")
        try:
            stream = loop.open(loop.connect(connection_settings(stack)), request, Normal())
        except OSError:
            time.sleep(0.2)
            continue
        if stream.wait(5) and stream.reading.finish_reason == "length":
            return time.monotonic()
        time.sleep(0.2)
    return None


def summary(done: list[Round]) -> dict[str, Any]:
    return {"rounds": [asdict(each) for each in done], "crashes": sum(each.crashed for each in done)}
