"""Raw clients in a process of their own, so that one's interpreter lock never delays the other's clock."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Any

from sluiceway.cli.bench.readers.policy import Normal, ReadingPolicy
from sluiceway.cli.bench.readers.protocols import Connection, connect
from sluiceway.cli.bench.readers.reading import Reading, Stream
from sluiceway.cli.bench.readers.transport import ConnectionSettings, Leave
from sluiceway.cli.bench.readers.wire import StreamRequest


@dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """One client. share: clients with the same name are multiplexed on one connection.

    repeat: requests one after the other; they get client ids "ID#0", "ID#1", ... when above 1.
    start_after_s: after the process began. pause_s: between two requests. leave_after_s: RST_STREAM so long
    after each request was sent, if it has not ended by then.
    """

    connection: ConnectionSettings
    request: StreamRequest
    policy: ReadingPolicy = field(default_factory=Normal)
    share: str | None = None
    repeat: int = 1
    start_after_s: float = 0.0
    pause_s: float = 0.0
    leave_after_s: float | None = None
    half_close: bool = True


class ReaderProcess:
    """Runs plans in a spawned process; killed with its owner (daemon) or by ``kill()``."""

    def __init__(self, plans: Sequence[ClientPlan], *, name: str = "readers") -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(list(plans), theirs), name=name, daemon=True)
        self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def snapshot(self) -> list[Reading]:
        """Every reading so far, running ones included."""
        readings: list[Reading] = self._ask("snapshot")
        return readings

    def stop(self) -> list[Reading]:
        """Leave all streams (FIN), end the process, return the readings."""
        readings: list[Reading] = self._ask("stop")
        self._process.join(10)
        return readings

    def wait(self, timeout_s: float) -> list[Reading]:
        """Wait until every plan is done (at most ``timeout_s``), then as ``stop``."""
        deadline = time.monotonic() + timeout_s
        while not self._ask("done") and time.monotonic() < deadline:
            time.sleep(0.2)
        return self.stop()

    def kill(self) -> float:
        """Kill -9; returns the time."""
        at = time.monotonic()
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(10)
        return at

    def _ask(self, what: str) -> Any:
        self._pipe.send(what)
        if not self._pipe.poll(30):
            raise TimeoutError(f"the process {self._process.name} did not answer {what!r} in 30 s")
        return self._pipe.recv()


class _Clients:
    """The loop side: one task a plan."""

    def __init__(self, plans: Sequence[ClientPlan]) -> None:
        self.readings: list[Reading] = []
        self.connections: list[Connection[Any]] = []
        self._shared: dict[str, asyncio.Task[Connection[Any]]] = {}
        self.tasks = [asyncio.create_task(self._client(plan)) for plan in plans]

    async def _client(self, plan: ClientPlan) -> None:
        await asyncio.sleep(plan.start_after_s)
        try:
            connection = await self._connection(plan)
        except OSError as problem:
            failed = Reading(client_id=plan.request.client_id, opened_at=time.monotonic())
            failed.error = f"connect: {problem}"
            self.readings.append(failed)
            return
        for turn in range(plan.repeat):
            if turn and plan.pause_s:
                await asyncio.sleep(plan.pause_s)
            stream = connection.open(_numbered(plan, turn), plan.policy, half_close=plan.half_close)
            self.readings.append(stream.reading)
            await _ended(stream, connection, plan.leave_after_s)

    async def _connection(self, plan: ClientPlan) -> Connection[Any]:
        if plan.share is None:
            return await self._connect(plan)
        if plan.share not in self._shared:
            self._shared[plan.share] = asyncio.create_task(self._connect(plan))
        return await self._shared[plan.share]

    async def _connect(self, plan: ClientPlan) -> Connection[Any]:
        connection = await connect(plan.connection)
        self.connections.append(connection)
        return connection

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self.tasks, return_exceptions=True):
            if isinstance(outcome, Exception):  # a cancelled client is none
                raise outcome
        for connection in self.connections:
            connection.close()
        await asyncio.sleep(0)  # transports close on the loop's next turn


def _numbered(plan: ClientPlan, turn: int) -> StreamRequest:
    if plan.repeat == 1:
        return plan.request
    values = {name: getattr(plan.request, name) for name in plan.request.__dataclass_fields__}
    return StreamRequest(**{**values, "client_id": f"{plan.request.client_id}#{turn}"})


async def _ended(stream: Stream, connection: Connection[Any], leave_after_s: float | None) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stream.on_end = lambda: None if future.done() else future.set_result(None)
    if stream.ended:
        return
    try:
        async with asyncio.timeout(leave_after_s):
            await future
    except TimeoutError:
        connection.leave(stream, Leave.RST_STREAM)


def _main(plans: list[ClientPlan], pipe: Pipe) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the bench, which then stops us
    with contextlib.suppress(EOFError, BrokenPipeError):
        asyncio.run(_serve(plans, pipe))


async def _serve(plans: list[ClientPlan], pipe: Pipe) -> None:
    clients = _Clients(plans)
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    loop.add_reader(pipe.fileno(), asked.set)
    while True:
        await asked.wait()
        asked.clear()
        if not pipe.poll():  # a wake-up for what was read already: recv() would block every client
            continue
        what = pipe.recv()
        if what == "done":
            pipe.send(all(task.done() for task in clients.tasks))
        elif what == "snapshot":
            pipe.send(clients.readings)
        else:
            await clients.stop()
            pipe.send(clients.readings)
            return
