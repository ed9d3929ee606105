"""Clients that come back: what their streams leave in the spool, and how they get the rest of it.

The driver's own, and like it without a clock or a thread. A stream that may be resumed has an owner, the
stream that the engine fills, and at most one client: the owner's own, or a returned one's stream, which is
fed from here. The last to come is the client; the one before is let go with ``detached``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sluiceway.core.commands import Frame
from sluiceway.core.decision import Action, Decision
from sluiceway.core.events import (
    AbortRequested,
    Decided,
    EngineFinished,
    Event,
    FinishReason,
    FrameReplayed,
)
from sluiceway.core.spool import Spool, SpoolPosition
from sluiceway.core.spool_errors import ResumeRefused, SpoolFull, StreamExpired, StreamUnknown
from sluiceway.core.states import State
from sluiceway.runtime.config import Config
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.messages import Admit, ClientElsewhere, SpoolFound, SpoolLost, SpoolRead
from sluiceway.runtime.spool_mirror import MirroredSpool
from sluiceway.runtime.spool_reader import SpoolReader, SpoolUnreachable
from sluiceway.runtime.spool_source import SpoolSource
from sluiceway.runtime.spool_writer import SpoolWriter

T = TypeVar("T")
TENANT = ""  # of everybody, until requests carry a verified identity
_READ_BYTES = 16 * 1024
# Unread beyond the first share of max_stream_bytes, a stream without its client waits until it is below
# the second. What the engine makes until it hears of it must fit above the first.
_HOLD_SHARE, _GO_ON_SHARE = 0.75, 0.5


class Generation(Protocol):
    """The engine's side of an owner, as far as it is steered from here."""

    def pause(self) -> None: ...

    def release_kv(self) -> None: ...

    def resume(self) -> None: ...


class Host(Protocol):
    """What the driver does for us."""

    def apply_to(self, request_id: str, event: Event, now: float) -> None:
        """Unknown ids are ignored."""

    def attach(self, message: Admit, position: SpoolPosition, source: SpoolSource, now: float) -> str | None:
        """Open a stream that goes on at ``position``, fed from ``source``; its request id, or None: refused."""

    def attached(self, request_id: str, now: float) -> None:
        """We know the stream now: it may hear that its client has left already."""

    def refuse(self, message: Admit, text: str, code: ErrorCode) -> None: ...


@dataclass(slots=True, eq=False)
class _Owner:
    request_id: str
    generation: Generation
    has_client: bool = True  # its own
    is_held: bool = False  # too much of it is unread


@dataclass(slots=True, eq=False)
class _Returned:
    """A returned client's stream. key: under which Redis is asked for its frames, "" if it is not."""

    source: SpoolSource
    key: str
    confirmed: int  # frames below were delivered


class Resumes:
    """writer, reader: Redis, if there is one."""

    def __init__(
        self,
        config: Config,
        host: Host,
        *,
        writer: SpoolWriter | None = None,
        reader: SpoolReader | None = None,
    ) -> None:
        self._floor_bytes = config.spool_floor_bytes
        self._max_stream_bytes = config.spool.max_stream_bytes
        self._max_asked = config.admission.max_streams
        self._kept = MirroredSpool(config.spool.limits(), writer)
        self._spool = self._kept.spool
        self._host = host
        self._reader = reader
        self._owners: dict[str, _Owner] = {}  # by stream id, while the engine's stream is open
        self._returned: dict[str, _Returned] = {}  # by request id
        self._client_of: dict[str, str] = {}  # stream id to the returned client's request id
        self._asked: dict[str, Admit] = {}  # Redis is asked about these
        self._remote: dict[str, str] = {}  # key to request id
        self._wanted: list[SpoolSource] = []
        self._fresh: dict[str, None] = {}  # streams with news; a set that keeps their order
        self._overfull: list[str] = []
        self._ending: set[str] = set()  # request ids of streams that nobody reads and nobody keeps
        self._keys = self._resumed = self._taken_over = self._held = self._cut = self._abandoned = 0
        self._refusals: dict[str, int] = {}

    @property
    def spool(self) -> Spool:
        return self._spool

    # --- streams that the engine fills ---------------------------------------------------------------

    def open(self, stream_id: str, request_id: str, generation: Generation) -> None:
        """A resumable stream begins. Raises SpoolFull."""
        self._kept.open(stream_id, TENANT, self._floor_bytes)
        self._owners[stream_id] = _Owner(request_id, generation)

    def keep(self, stream_id: str, request_id: str, frame: Frame) -> None:
        """A frame was handed out, or nobody is there to take it. Of returned clients', nothing is kept twice."""
        owner = self._owners.get(stream_id)
        if owner is None or owner.request_id != request_id:
            return
        try:
            self._kept.append(stream_id, frame)
        except SpoolFull:
            if owner.has_client:  # that one reads on; only coming back is over
                self._abandon(stream_id)
                return
            self._kept.cut(stream_id, FinishReason.QUOTA)
            self._cut += 1
            self._overfull.append(request_id)
        except ResumeRefused:
            return  # expired, or cut before: the end of the stream is under way
        self._fresh[stream_id] = None

    def reserve(self, stream_id: str, more_bytes: int) -> bool:
        """Before a stream is detached: room for what is still to come; False if there is none."""
        return stream_id in self._spool and self._spool.reserve(stream_id, more_bytes)

    # --- what happens to any stream with an id -------------------------------------------------------

    def delivered(self, stream_id: str, request_id: str, frames: int) -> None:
        """So many frames of the stream ``request_id`` were delivered to its client."""
        owner, returned = self._owners.get(stream_id), self._returned.get(request_id)
        if returned is not None:
            returned.confirmed = returned.source.first_sequence + frames
            if self._client_of.get(stream_id) == request_id:
                self._confirm(stream_id, returned.confirmed)
        elif owner is not None and owner.request_id == request_id and owner.has_client:
            self._confirm(stream_id, frames)

    def moved(self, stream_id: str, request_id: str, state: State, now: float) -> None:
        """After an event of the stream: its client may have been let go."""
        if state is not State.DETACHED:
            return
        owner, returned = self._owners.get(stream_id), self._returned.get(request_id)
        if returned is not None:
            self._client_left(stream_id, request_id, now, is_read=False)
            self._let_go(request_id, FinishReason.DETACHED, now)
        elif owner is not None and owner.request_id == request_id and owner.has_client:
            owner.has_client = False
            if stream_id not in self._client_of:
                self._spool.leave(stream_id, now, is_read=False)
        elif owner is None:  # nobody keeps what it makes
            self._let_go(request_id, FinishReason.CANCELLED, now)

    def closed(self, stream_id: str, request_id: str, reason: FinishReason | None, now: float) -> None:
        """The stream is over: FINAL is out, and what its source had to say was said."""
        self._ending.discard(request_id)
        if (returned := self._returned.pop(request_id, None)) is not None:
            is_read = returned.source.is_over and reason is not FinishReason.DETACHED
            self._client_left(stream_id, request_id, now, is_read=is_read)
            if self._remote.pop(returned.key, None) is not None and self._reader is not None:
                self._reader.leave(returned.key)
            return
        owner = self._owners.get(stream_id)
        if owner is None or owner.request_id != request_id:
            return
        del self._owners[stream_id]
        self._end(stream_id)
        if owner.has_client and stream_id not in self._client_of:
            # What Envoy still holds of it is at most a window, and who lost that comes back soon.
            self._spool.leave(stream_id, now, is_read=True)

    # --- clients that come back ----------------------------------------------------------------------

    def come_back(self, message: Admit, now: float) -> None:
        """The message names a stream and its next frame. It is attached, or refused with the reason."""
        stream_id, sequence = message.request.stream_id, message.request.resume_frame
        assert sequence is not None  # the driver looked
        try:
            position = self._spool.look_up(stream_id, TENANT, sequence)
        except (StreamUnknown, StreamExpired) as refusal:
            if self._reader is None or len(self._asked) >= self._max_asked:
                self._refuse(message, refusal)
                return
            self._keys += 1
            key = f"resume-{self._keys}"
            self._asked[key] = message
            self._reader.look_up(key, stream_id, TENANT, sequence)
        except ResumeRefused as refusal:
            self._refuse(message, refusal)
        else:
            self._take_over(stream_id, now)
            self._spool.attach(stream_id, sequence)
            source = SpoolSource(stream_id, sequence, is_remote=False, on_wanted=self._wanted.append)
            if not self._attach(message, position, source, "", now):
                self._spool.leave(stream_id, now, is_read=False)

    def found(self, news: SpoolFound, now: float) -> None:
        """Redis answered whether another replica's stream is there."""
        assert self._reader is not None  # it was asked
        message = self._asked.pop(news.key)
        if isinstance(news.answer, ResumeRefused):
            self._refuse(message, news.answer)
            return
        position = news.answer
        source = SpoolSource(
            message.request.stream_id, position.sequence, is_remote=True, on_wanted=self._wanted.append
        )
        if not self._attach(message, position, source, news.key, now):
            self._reader.leave(news.key)

    def read(self, news: SpoolRead) -> None:
        if (returned := self._returned.get(self._remote.get(news.key, ""))) is not None:
            returned.source.add(news.frames)

    def lost(self, news: SpoolLost) -> None:
        if (returned := self._returned.get(self._remote.get(news.key, ""))) is not None:
            returned.source.lose(news.why)

    def elsewhere(self, news: ClientElsewhere, now: float) -> None:
        """The client of one of our streams came to another replica, or still is there."""
        stream_id = news.stream_id
        if news.is_new:
            self._take_over(stream_id, now)
        owner = self._owners.get(stream_id)
        if stream_id in self._client_of or (owner is not None and owner.has_client):
            return  # it came back to us since
        try:
            self._spool.look_up(stream_id, TENANT, news.sequence)
        except ResumeRefused:
            pass  # nothing more to get, or a notice that is late
        else:
            self._spool.attach(stream_id, news.sequence)
        self._spool.leave(stream_id, now, is_read=False)
        self._fresh[stream_id] = None

    # --- the end of a turn ---------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Feed returned clients, end what does not fit, expire what is due. The driver's last act in a turn."""
        for stream_id in self._kept.expire(now):
            if (owner := self._owners.get(stream_id)) is not None:
                self._host.apply_to(owner.request_id, AbortRequested(FinishReason.CANCELLED), now)
        while self._overfull or self._fresh or self._wanted:
            for request_id in self._take(self._overfull):
                self._host.apply_to(request_id, AbortRequested(FinishReason.QUOTA), now)
            fresh, self._fresh = self._fresh, {}
            for stream_id in fresh:
                self._pace(stream_id)
                if (client := self._returned.get(self._client_of.get(stream_id, ""))) is not None:
                    self._wanted.append(client.source)
            for source in self._take(self._wanted):
                self._feed(source, now)

    def next_deadline(self) -> float | None:
        return self._spool.next_deadline()

    def statistics(self) -> dict[str, Any]:
        """For /statistics."""
        answer = self._kept.statistics() | {
            "generating": len(self._owners),
            "returned_open": len(self._returned),
            "resumed": self._resumed,
            "taken_over": self._taken_over,
            "held": self._held,
            "cut": self._cut,
            "abandoned": self._abandoned,
            "refusals": dict(self._refusals),
        }
        if answer["redis"] is not None and self._reader is not None:
            answer["redis"]["read_errors"] = self._reader.errors
        return answer

    # --- within --------------------------------------------------------------------------------------

    def _attach(self, message: Admit, position: SpoolPosition, source: SpoolSource, key: str, now: float) -> bool:
        request_id = self._host.attach(message, position, source, now)
        if request_id is None:
            return False
        self._resumed += 1
        source.request_id = request_id
        self._returned[request_id] = _Returned(source, key, position.sequence)
        if key:
            self._remote[key] = request_id
        else:
            self._client_of[source.stream_id] = request_id
        self._wanted.append(source)
        self._host.attached(request_id, now)
        return True

    def _let_go(self, request_id: str, reason: FinishReason, now: float) -> None:
        """Once: what ends a stream is also something that happens to it."""
        if request_id not in self._ending:
            self._ending.add(request_id)
            self._host.apply_to(request_id, AbortRequested(reason), now)

    @staticmethod
    def _take(items: list[T]) -> list[T]:
        """All of them; what comes meanwhile is for the next round."""
        taken = items.copy()
        items.clear()
        return taken

    def _take_over(self, stream_id: str, now: float) -> None:
        """Whoever was the client until now is let go, however alive the connection looks."""
        let_go = Decided(Decision(action=Action.DETACH, reason="taken_over"))
        if (request_id := self._client_of.get(stream_id)) is not None:
            self._taken_over += 1
            self._host.apply_to(request_id, let_go, now)
        elif (owner := self._owners.get(stream_id)) is not None and owner.has_client:
            self._taken_over += 1
            self._host.apply_to(owner.request_id, let_go, now)
            owner.has_client = False  # also if its last frame was out already

    def _client_left(self, stream_id: str, request_id: str, now: float, *, is_read: bool) -> None:
        if self._client_of.get(stream_id) == request_id:
            del self._client_of[stream_id]
            self._spool.leave(stream_id, now, is_read=is_read)

    def _refuse(self, message: Admit, refusal: ResumeRefused) -> None:
        self._refusals[refusal.code] = self._refusals.get(refusal.code, 0) + 1
        is_away = isinstance(refusal, SpoolUnreachable)
        code = ErrorCode.UNAVAILABLE if is_away else ErrorCode.INVALID_ARG
        self._host.refuse(message, f"{refusal.code}: {refusal}", code)

    def _feed(self, source: SpoolSource, now: float) -> None:
        request_id = source.request_id
        if request_id not in self._returned:
            return
        if source.is_aborted:
            if not source.is_over:
                source.is_over = True
                self._host.apply_to(request_id, EngineFinished(FinishReason.CANCELLED), now)
            return
        while source.may_feed:
            if (frame := source.take() or self._next(source)) is None:
                break
            source.fed(frame)
            self._host.apply_to(request_id, FrameReplayed(frame), now)
        if source.may_feed and source.lost:
            self._host.apply_to(request_id, AbortRequested(FinishReason.ERROR), now)
        elif source.may_feed and source.is_remote and not source.is_asked and self._reader is not None:
            source.is_asked = True
            returned = self._returned[request_id]
            self._reader.more(returned.key, returned.confirmed)

    def _next(self, source: SpoolSource) -> Frame | None:
        """Of what this process keeps."""
        if source.is_remote:
            return None
        try:
            source.put(self._spool.read(source.stream_id, source.next_sequence, _READ_BYTES))
        except ResumeRefused as refusal:  # a stream with a client is not forgotten; should it be, say so
            source.lost = str(refusal)
        return source.take()

    def _pace(self, stream_id: str) -> None:
        """A stream whose own client is gone fills the spool at the engine's pace: it waits when too much is unread."""
        owner = self._owners.get(stream_id)
        if owner is None or owner.has_client:
            return
        unread = self._spool.undelivered_bytes(stream_id)
        if not owner.is_held and unread > _HOLD_SHARE * self._max_stream_bytes:
            owner.is_held = True
            self._held += 1
            owner.generation.pause()
            owner.generation.release_kv()
        elif owner.is_held and unread < _GO_ON_SHARE * self._max_stream_bytes:
            owner.is_held = False
            owner.generation.resume()

    def _confirm(self, stream_id: str, sequence: int) -> None:
        self._kept.confirm(stream_id, sequence)
        self._fresh[stream_id] = None

    def _end(self, stream_id: str) -> None:
        """The owner said its last: so does what is kept of it."""
        if stream_id in self._spool and not self._spool.is_complete(stream_id):
            self._kept.cut(stream_id, FinishReason.ERROR)
            self._fresh[stream_id] = None

    def _abandon(self, stream_id: str) -> None:
        self._abandoned += 1
        del self._owners[stream_id]
        self._kept.remove(stream_id)
