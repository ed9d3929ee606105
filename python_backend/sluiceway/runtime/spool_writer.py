"""Writes the spool to Redis: one thread, never in the driver's way."""

from __future__ import annotations

import contextlib
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import redis

from sluiceway.runtime.spool_redis import BEGAN, FRAME, OWNER_TTL_S, Client, Failure, RedisPlace, entry_id

_BATCH = 512
_HEARTBEAT_S = 2.0
_RETRY_S = 1.0
_JOB_BYTES = 256  # what a job takes beside its record


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatistics:
    """queued_bytes: not written yet. dropped_frames: never will be; their streams are in memory only."""

    connected: bool
    errors: int
    last_error: str
    queued_bytes: int
    written_frames: int
    dropped_frames: int
    dropped_streams: int


class SpoolWriter:
    """begin(), keep(), trim(), refresh() and forget() are the driver's and never block.

    What Redis did not take is tried again: entries have numbers, so writing one twice changes nothing. Beyond
    ``max_queue_bytes`` a stream is given up for Redis, as a whole: other replicas then do not find it.
    clock: for pauses between tries only.
    """

    def __init__(self, place: RedisPlace, *, clock: Callable[[], float], log: Callable[[str], None]) -> None:
        self._place = place
        self._clock = clock
        self._log = log
        self._client: Client = place.connect()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # Each of the two has one writer, so that neither thread needs a lock.
        self._put_bytes = self._done_bytes = 0
        self._dropped: set[str] = set()  # streams that are not in Redis
        self._dropped_frames = self._dropped_streams = 0
        self._written_frames = self._errors = 0
        self._last_error = ""
        self._is_connected = False
        self._stopping = threading.Event()
        self._beat_at = 0.0
        self._thread = threading.Thread(target=self._run, name="spool-writer", daemon=True)

    def start(self) -> None:
        """Says in the log if Redis is not there; the streams are then kept in memory, and it is tried again."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Write what is queued and end; False if that takes longer."""
        self._stopping.set()
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def begin(self, stream_id: str, tenant: str) -> None:
        self._put(_Begin(stream_id, tenant))

    def keep(self, stream_id: str, sequence: int, record: bytes) -> None:
        if not self._put(_Keep(stream_id, sequence, record)):
            self._dropped_frames += 1

    def trim(self, stream_id: str, first_sequence: int) -> None:
        """Frames below are no longer kept."""
        self._put(_Trim(stream_id, first_sequence))

    def refresh(self, stream_ids: Iterable[str]) -> None:
        """They are still kept; without this, Redis forgets a stream ttl_s after its last frame."""
        self._put(_Refresh("", tuple(stream_id for stream_id in stream_ids if stream_id not in self._dropped)))

    def forget(self, stream_id: str) -> None:
        self._put(_Forget(stream_id))
        self._dropped.discard(stream_id)

    def statistics(self) -> WriterStatistics:
        return WriterStatistics(
            connected=self._is_connected,
            errors=self._errors,
            last_error=self._last_error,
            queued_bytes=self._put_bytes - self._done_bytes,
            written_frames=self._written_frames,
            dropped_frames=self._dropped_frames,
            dropped_streams=self._dropped_streams,
        )

    def _put(self, job: _Job) -> bool:
        if job.stream_id in self._dropped:
            return False
        size = job.size
        if self._put_bytes - self._done_bytes + size > self._place.config.max_queue_bytes:
            if not job.stream_id:
                return False
            self._dropped.add(job.stream_id)
            self._dropped_streams += 1
            job = _Forget(job.stream_id)  # half a stream would look like one that has expired
            self._put_bytes += job.size
            self._jobs.put(job)
            return False
        self._put_bytes += size
        self._jobs.put(job)
        return True

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        batch: list[_Job] = []
        while True:
            batch = batch or self._take()
            is_last = self._stopping.is_set() and len(batch) < _BATCH
            if self._write(batch):
                self._done_bytes += sum(job.size for job in batch)
                batch = []
            elif self._stopping.is_set():
                return
            else:
                self._stopping.wait(_RETRY_S)
            if is_last and not batch:
                with contextlib.suppress(*Failure):
                    self._client.delete(self._place.alive(self._place.owner))
                    self._client.close()
                return

    def _take(self) -> list[_Job]:
        batch: list[_Job] = []
        with contextlib.suppress(queue.Empty):
            job = self._jobs.get(timeout=_HEARTBEAT_S / 2)
            while job is not None and len(batch) < _BATCH:
                batch.append(job)
                job = self._jobs.get_nowait()
            if job is not None:
                batch.append(job)
        return batch

    def _write(self, batch: list[_Job]) -> bool:
        try:
            pipe = self._client.pipeline(transaction=False)
            for job in batch:
                job.add(pipe, self._place)
            for stream_id in dict.fromkeys(job.stream_id for job in batch if isinstance(job, _Keep)):
                pipe.pexpire(self._place.frames(stream_id), self._place.ttl_ms)
            if not self._is_connected or self._clock() >= self._beat_at:
                pipe.set(self._place.alive(self._place.owner), 1, ex=OWNER_TTL_S)
                self._beat_at = self._clock() + _HEARTBEAT_S
            for answer in pipe.execute(raise_on_error=False):
                # An entry that is there already says so by an error. Anything else is one.
                if isinstance(answer, redis.RedisError) and "equal or smaller" not in str(answer):
                    raise answer
        except Failure as error:
            self._failed(error)
            return False
        self._written_frames += sum(isinstance(job, _Keep) for job in batch)
        if not self._is_connected:
            self._is_connected = True
            self._log(f"spool: writing to Redis at {self._place.where(self._client)}")
        return True

    def _failed(self, error: Exception) -> None:
        self._errors += 1
        self._last_error = type(error).__name__
        if self._is_connected or self._errors == 1:
            where = self._place.where(self._client)
            self._log(
                f"spool: WITHOUT REDIS ({type(error).__name__} at {where}, spool.redis): streams are kept in this"
                " process only; trying again"
            )
        self._is_connected = False
        self._client.connection_pool.disconnect()


@dataclass(frozen=True, slots=True)
class _Job(ABC):
    stream_id: str

    @property
    def size(self) -> int:
        return _JOB_BYTES

    @abstractmethod
    def add(self, pipe: Any, place: RedisPlace) -> None: ...


@dataclass(frozen=True, slots=True)
class _Begin(_Job):
    tenant: str

    def add(self, pipe: Any, place: RedisPlace) -> None:
        about, frames = place.about(self.stream_id), place.frames(self.stream_id)
        pipe.hset(about, mapping={"tenant": self.tenant, "owner": place.owner})
        pipe.pexpire(about, 2 * place.ttl_ms)
        pipe.xadd(frames, {BEGAN: b"1"}, id="0-1")
        pipe.pexpire(frames, place.ttl_ms)


@dataclass(frozen=True, slots=True)
class _Keep(_Job):
    sequence: int
    record: bytes

    @property
    def size(self) -> int:
        return _JOB_BYTES + len(self.record)

    def add(self, pipe: Any, place: RedisPlace) -> None:
        pipe.xadd(
            place.frames(self.stream_id),
            {FRAME: self.record},
            id=entry_id(self.sequence),
            maxlen=place.config.max_stream_frames,
            approximate=True,
            nomkstream=True,  # after a restart of Redis, half a stream would look like one that has expired
        )


@dataclass(frozen=True, slots=True)
class _Trim(_Job):
    first_sequence: int

    def add(self, pipe: Any, place: RedisPlace) -> None:
        pipe.xtrim(place.frames(self.stream_id), minid=entry_id(self.first_sequence), approximate=False)


@dataclass(frozen=True, slots=True)
class _Refresh(_Job):
    stream_ids: tuple[str, ...]

    @property
    def size(self) -> int:
        return _JOB_BYTES + 128 * len(self.stream_ids)

    def add(self, pipe: Any, place: RedisPlace) -> None:
        for stream_id in self.stream_ids:
            pipe.pexpire(place.frames(stream_id), place.ttl_ms)
            pipe.pexpire(place.about(stream_id), 2 * place.ttl_ms)


@dataclass(frozen=True, slots=True)
class _Forget(_Job):
    def add(self, pipe: Any, place: RedisPlace) -> None:
        pipe.delete(place.frames(self.stream_id))
        pipe.pexpire(place.about(self.stream_id), 2 * place.ttl_ms)
