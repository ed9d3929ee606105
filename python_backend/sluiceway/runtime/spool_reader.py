"""Reads other replicas' streams out of Redis, and hears which of ours have a client elsewhere: one thread."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from sluiceway.core.commands import Frame
from sluiceway.core.spool import SpoolPosition
from sluiceway.core.spool_errors import (
    FrameExpired,
    FrameUnknown,
    ResumeRefused,
    StreamComplete,
    StreamExpired,
    StreamForeign,
    StreamUnknown,
)
from sluiceway.core.spool_record import unpack
from sluiceway.runtime.messages import ClientElsewhere, Message, SpoolFound, SpoolLost, SpoolRead
from sluiceway.runtime.spool_redis import FRAME, OWNER_TTL_S, Client, Failure, RedisPlace, entry_id, sequence_of

_BLOCK_MS = 50  # how long a question may wait for the wait before it
_FRAMES_A_READ = 64
_NOTICE_S = 1.0
_NOTICES_KEPT = 4096
_CHECK_S = 1.0
_PATIENCE_S = 1.0  # a client may be here before what it already has is: its old replica writes behind


class SpoolUnreachable(ResumeRefused):
    """Redis does not answer, so nobody here knows whether the stream exists."""

    code = "spool_unreachable"


@dataclass(slots=True)
class _Followed:
    """next_sequence: of the frame to read next, wanted if is_wanted. confirmed: frames the client has."""

    stream_id: str
    owner: str
    next_sequence: int
    confirmed: int
    is_wanted: bool = True
    is_complete: bool = False
    told_at: float = field(default=float("-inf"))
    checked_at: float = field(default=float("-inf"))


class SpoolReader:
    """look_up(), more() and leave() are the driver's and never block; answers go to ``post``.

    A stream whose owner says nothing for OWNER_TTL_S, or whose frames are gone, is lost, and so is one
    whose Redis is away for as long.
    """

    def __init__(
        self,
        place: RedisPlace,
        post: Callable[[Message], None],
        *,
        clock: Callable[[], float],
        log: Callable[[str], None],
    ) -> None:
        self._place = place
        self._post = post
        self._clock = clock
        self._log = log
        self._client: Client = place.connect()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._again: list[Callable[[], None]] = []  # look-ups that found nothing yet
        self._followed: dict[str, _Followed] = {}  # by the key of the request that wants it
        self._last_notice = b"$"
        self._away_since: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spool-reader", daemon=True)
        self.errors = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        self._stopping.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def look_up(self, key: str, stream_id: str, tenant: str, sequence: int) -> None:
        """Answered by one SpoolFound; from then on the stream is followed, until leave()."""
        until = self._clock() + _PATIENCE_S
        self._jobs.put(lambda: self._look_up(key, stream_id, tenant, sequence, until))

    def more(self, key: str, confirmed: int) -> None:
        """Answered by one SpoolRead with the next frames once there are some; ``confirmed``: frames delivered."""
        self._jobs.put(lambda: self._more(key, confirmed))

    def leave(self, key: str) -> None:
        self._jobs.put(lambda: self._leave(key))

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(queue.Empty):
                while True:
                    self._jobs.get_nowait()()
            again, self._again = self._again, []
            for job in again:
                job()
            try:
                self._read()
                self._tend()
                self._away_since = None
            except Failure as error:
                self._failed(error)
                self._stopping.wait(_CHECK_S / 2)

    def _look_up(self, key: str, stream_id: str, tenant: str, sequence: int, until: float) -> None:
        try:
            position, followed = self._find(stream_id, tenant, sequence)
        except ResumeRefused as refusal:
            if isinstance(refusal, FrameUnknown | StreamUnknown) and self._clock() < until:
                self._again.append(lambda: self._look_up(key, stream_id, tenant, sequence, until))
            else:
                self._post(SpoolFound(key, refusal))
        except Failure as error:
            self.errors += 1
            self._client.connection_pool.disconnect()
            self._post(
                SpoolFound(key, SpoolUnreachable(f"the spool in Redis does not answer ({type(error).__name__})"))
            )
        except ValueError:
            self._post(SpoolFound(key, StreamUnknown("what Redis has under this id is no stream of ours")))
        else:
            self._followed[key] = followed
            self._post(SpoolFound(key, position))

    def _find(self, stream_id: str, tenant: str, sequence: int) -> tuple[SpoolPosition, _Followed]:
        frames = self._place.frames(stream_id)
        about = self._client.hgetall(self._place.about(stream_id))
        if not about:
            raise StreamUnknown("no stream has this id")
        if about.get(b"tenant", b"").decode() != tenant:
            raise StreamForeign("the stream is not yours")
        last = self._client.xrevrange(frames, count=1)
        if not last:
            raise StreamExpired("the stream is no longer kept")
        next_sequence = sequence_of(last[0][0]) + 1
        end = unpack(last[0][1][FRAME]) if next_sequence else None
        if end is not None and end.finish_reason is not None and sequence >= next_sequence:
            raise StreamComplete(f"the answer is complete, its last frame is {next_sequence - 1}")
        if sequence > next_sequence:
            raise FrameUnknown(f"frame {sequence} cannot be next, so far there are {next_sequence}")
        if sequence == next_sequence:
            first_token_index = 0 if end is None else end.first_token_index + len(end.token_ids)
        else:
            found = self._client.xrange(frames, min=entry_id(sequence), count=1)
            if not found or sequence_of(found[0][0]) != sequence:
                raise FrameExpired(f"frame {sequence} is no longer kept")
            first_token_index = unpack(found[0][1][FRAME]).first_token_index
        followed = _Followed(stream_id, about.get(b"owner", b"").decode(), sequence, sequence)
        self._tell(followed)
        return SpoolPosition(sequence=sequence, first_token_index=first_token_index), followed

    def _more(self, key: str, confirmed: int) -> None:
        if (followed := self._followed.get(key)) is not None:
            followed.confirmed = max(followed.confirmed, confirmed)
            followed.is_wanted = not followed.is_complete

    def _leave(self, key: str) -> None:
        self._followed.pop(key, None)

    def _read(self) -> None:
        """Wait for frames that are wanted, and for notices to this replica."""
        own = self._place.notices(self._place.owner)
        wanted = {self._place.frames(f.stream_id): f for f in self._followed.values() if f.is_wanted}
        after = {name: entry_id(followed.next_sequence - 1) for name, followed in wanted.items()}
        if self._last_notice == b"$":  # "$" would miss what comes between two waits
            newest = self._client.xrevrange(own, count=1)
            self._last_notice = newest[0][0] if newest else b"0-0"
        answer = self._client.xread({own: self._last_notice, **after}, count=_FRAMES_A_READ, block=_BLOCK_MS)
        for name, entries in answer or ():
            if name.decode() == own:
                self._hear(entries)
                continue
            for key, followed in list(self._followed.items()):
                if followed.is_wanted and self._place.frames(followed.stream_id) == name.decode():
                    self._pass_on(key, followed, entries)

    def _pass_on(self, key: str, followed: _Followed, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        frames: list[Frame] = []
        for entry, fields in entries:
            sequence = sequence_of(entry)
            if sequence < followed.next_sequence:
                continue  # that the stream began, or what another reader of it wanted
            try:
                frame = unpack(fields[FRAME])
            except (KeyError, ValueError):
                self._lose(key, "what Redis holds is no frame of ours")
                return
            if sequence != followed.next_sequence:
                self._lose(key, "frames are missing in Redis")
                return
            frames.append(frame)
            followed.next_sequence += 1
            followed.is_complete = frame.finish_reason is not None
        if frames:
            followed.is_wanted = False
            self._post(SpoolRead(key, tuple(frames)))

    def _hear(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        for entry, fields in entries:
            self._last_notice = entry
            with contextlib.suppress(KeyError, ValueError):
                self._post(ClientElsewhere(fields[b"stream"].decode(), int(fields[b"next"]), fields[b"new"] == b"1"))

    def _tend(self) -> None:
        now = self._clock()
        for key, followed in list(self._followed.items()):
            if now >= followed.told_at + _NOTICE_S:
                self._tell(followed)
            if followed.is_wanted and now >= followed.checked_at + _CHECK_S:
                followed.checked_at = now
                self._check(key, followed)

    def _tell(self, followed: _Followed) -> None:
        """Tell the owner that the client is here: it lets the old connection go, and does not expire the stream."""
        is_new = followed.told_at == float("-inf")
        if followed.is_complete and not is_new:
            return
        followed.told_at = self._clock()
        notices = self._place.notices(followed.owner)
        pipe = self._client.pipeline(transaction=False)
        notice = {"stream": followed.stream_id, "next": followed.confirmed, "new": int(is_new)}
        pipe.xadd(notices, notice, maxlen=_NOTICES_KEPT, approximate=True)
        pipe.pexpire(notices, self._place.ttl_ms)
        pipe.execute()

    def _check(self, key: str, followed: _Followed) -> None:
        """Nothing new came: is there still somebody who makes it?"""
        alive = self._client.exists(self._place.alive(followed.owner))
        newest = self._client.xrevrange(self._place.frames(followed.stream_id), count=1)
        if not newest:
            self._lose(key, "the stream is no longer kept")
        elif not alive and sequence_of(newest[0][0]) < followed.next_sequence:
            self._lose(key, "the replica that made the answer is gone")

    def _lose(self, key: str, why: str) -> None:
        self._followed.pop(key, None)
        self._post(SpoolLost(key, why))

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        self._client.connection_pool.disconnect()
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
            if self._followed:
                self._log(
                    f"spool: cannot read from Redis ({type(error).__name__} at {self._place.where(self._client)})"
                )
        if now - self._away_since > OWNER_TTL_S:
            for key in list(self._followed):
                self._lose(key, "the spool in Redis does not answer")
