"""Clients that leave, whatever their stream is doing, and what the backend then did about it."""

from __future__ import annotations

import enum
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sluiceway.cli.bench import plans
from sluiceway.cli.bench.readers import (
    OVER_HTTP1,
    ClientPlan,
    ConnectionSettings,
    Leave,
    Never,
    Normal,
    ReaderLoop,
    ReaderProcess,
    ReadingPolicy,
    StreamRequest,
)
from sluiceway.cli.stack import Stack

STATE_TIMEOUT_S = 30.0
POLL_S = 0.02
LONG_PROMPT_WORDS = 600  # 3,600 tokens of the scripted engine
_numbers = itertools.count()


class Situation(enum.StrEnum):
    """What a stream is doing when its client leaves."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODING = "decoding"
    PAUSED = "paused"

    @property
    def policy(self) -> ReadingPolicy:
        return Never() if self is Situation.PAUSED else Normal()

    @property
    def prompt(self) -> str:
        return "river " * (LONG_PROMPT_WORDS if self is Situation.PREFILL else 4)

    def holds(self, stream: Mapping[str, Any]) -> bool:
        """Is this entry of /statistics in this situation?"""
        match self:
            case Situation.QUEUED:
                return bool(stream["engine_state"] == "waiting")
            case Situation.PREFILL:
                return bool(stream["engine_state"] == "prefill")
            case Situation.DECODING:
                return bool(stream["state"] == "streaming" and stream["produced"]["tokens"] >= 5)
            case Situation.PAUSED:
                return bool(stream["state"] == "paused")


KILL = "kill_9"
WAYS = (Leave.RST_STREAM.value, Leave.FIN.value, Leave.TCP_RST.value, KILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """``left_at``: time.monotonic() right after the server could notice (kill -9: right before)."""

    client_id: str
    situation: str
    way: str
    left_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What /finished says of one departure. Times count from the moment of leaving.

    kv_free_ms: until the blocks were in the free list (for a stream that never held any: until it was
    closed). wasted_tokens: made after the client had left.
    """

    client_id: str
    situation: str
    way: str
    noticed_ms: float
    kv_free_ms: float
    wasted_tokens: int
    finish_reason: str
    state_when_gone: str


def ways(protocol: str) -> tuple[str, ...]:
    """How a client of ``protocol`` can leave."""
    return tuple(way for way in WAYS if way != Leave.RST_STREAM or protocol not in OVER_HTTP1)


def leave_once(stack: Stack, situation: Situation, way: str, clients: int, protocol: str = "grpc") -> list[Departure]:
    """Bring ``clients`` streams into ``situation``, then let all of them leave at once by ``way``."""
    ids = [f"{situation}-{way}-{next(_numbers)}" for _ in range(clients)]
    if way == KILL:
        return _leave_killed(stack, situation, ids, protocol)
    with ReaderLoop() as loop:
        streams = [
            loop.open(loop.connect(connection_settings(stack, protocol)), request(situation, name), situation.policy)
            for name in ids
        ]
        wait_until(stack, ids, situation.holds, f"{situation} before {way}")
        times = [loop.leave(stream, Leave(way)) for stream in streams]
    return [
        Departure(client_id=name, situation=situation, way=way, left_at=at) for name, at in zip(ids, times, strict=True)
    ]


def _leave_killed(stack: Stack, situation: Situation, ids: Sequence[str], protocol: str) -> list[Departure]:
    connection = connection_settings(stack, protocol)
    victims = [
        ClientPlan(connection=connection, request=request(situation, name), policy=situation.policy) for name in ids
    ]
    process = ReaderProcess(victims, name="victims")
    try:
        wait_until(stack, ids, situation.holds, f"{situation} before kill -9")
    finally:
        at = process.kill()
    return [Departure(client_id=name, situation=situation, way=KILL, left_at=at) for name in ids]


def connection_settings(stack: Stack, protocol: str = "grpc", host: str = "127.0.0.1") -> ConnectionSettings:
    return plans.connection(stack.ports.envoy, plans.SMALL_WINDOW, protocol, host)


def request(situation: Situation, client_id: str) -> StreamRequest:
    return StreamRequest(prompt=situation.prompt, max_tokens=4000, sampling={"temperature": 0}, client_id=client_id)


def wait_until(stack: Stack, ids: Iterable[str], holds: Callable[[Mapping[str, Any]], bool], what: str) -> None:
    """Wait until ``holds`` is true of the entries of all ``ids`` in one snapshot of /statistics.

    Raises TimeoutError after 30 s: the scenario could not bring about what it wants to measure.
    """
    wanted = set(ids)
    deadline = time.monotonic() + STATE_TIMEOUT_S
    seen: dict[str, tuple[str, int]] = {}
    while time.monotonic() < deadline:
        streams = {s["client_id"]: s for s in stack.statistics()["streams"] if s["client_id"] in wanted}
        if streams.keys() == wanted and all(holds(stream) for stream in streams.values()):
            return
        seen = {name: (s["state"], s["produced"]["tokens"]) for name, s in streams.items()}
        time.sleep(POLL_S)
    raise TimeoutError(f"{what}: not reached in {STATE_TIMEOUT_S:g} s; last seen: {seen}")


def wait_until_idle(stack: Stack, timeout_s: float = 10.0) -> Mapping[str, Any]:
    """Statistics once no stream is open. Raises TimeoutError naming what is still open."""
    deadline = time.monotonic() + timeout_s
    while True:
        statistics = stack.statistics()
        if not statistics["totals"]["open_streams"] and not statistics["streams"]:
            return statistics
        if time.monotonic() > deadline:
            left = [(s["client_id"], s["state"]) for s in statistics["streams"]][:8]
            raise TimeoutError(f"streams still open {timeout_s:g} s after their clients left: {left}")
        time.sleep(POLL_S)


def finished_entries(stack: Stack, ids: Iterable[str], timeout_s: float = 10.0) -> dict[str, dict[str, Any]]:
    """The entries of /finished by client id; waits for those that are missing. Raises TimeoutError."""
    missing, found, since = set(ids), {}, 0
    deadline = time.monotonic() + timeout_s
    while missing:
        page = stack.finished(since)
        since = page["next"]
        for entry in page["finished"]:
            if entry["client_id"] in missing:
                missing.remove(entry["client_id"])
                found[entry["client_id"]] = entry
        if missing and time.monotonic() > deadline:
            raise TimeoutError(f"{len(missing)} streams never finished, one of them {min(missing)}")
        if missing:
            time.sleep(POLL_S)
    return found


def outcomes(departures: Sequence[Departure], entries: Mapping[str, Mapping[str, Any]]) -> list[Outcome]:
    """Join what the clients did with what the backend recorded; both clocks are the host's monotonic one."""
    return [_outcome(departure, entries[departure.client_id]) for departure in departures]


def _outcome(departure: Departure, entry: Mapping[str, Any]) -> Outcome:
    closed = entry["t_closed"]
    gone, freed = (entry[key] if entry[key] is not None else closed for key in ("t_client_gone", "t_kv_free"))
    about = asdict(departure)
    left_at = about.pop("left_at")
    return Outcome(
        **about,
        noticed_ms=(gone - left_at) * 1000,
        kv_free_ms=max(0.0, (freed - left_at) * 1000),
        wasted_tokens=sum(at > left_at for at in entry["token_times"]),
        finish_reason=entry["finish_reason"],
        state_when_gone=entry["state_when_gone"] or "",
    )
