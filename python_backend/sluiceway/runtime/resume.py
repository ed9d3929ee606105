"""Clients that come back: what their streams leave in the spool, and how they get the rest of it.

The driver's own, and like it without a clock or a thread. A stream that may be resumed has an owner, the
stream that the engine fills, and at most one client: the owner's own, or a returned one's stream, which is
a replay of what is kept. The last to come is the client; the one before is let go with ``detached``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sluiceway.core.commands import Frame
from sluiceway.core.decision import Action, Decision
from sluiceway.core.events import AbortRequested, Decided, FinishReason
from sluiceway.core.spool import Spool
from sluiceway.core.spool_errors import ResumeRefused, SpoolFull, StreamExpired, StreamUnknown
from sluiceway.core.states import State
from sluiceway.runtime.config import Config
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.messages import Admit, ClientElsewhere, SpoolFound, SpoolLost, SpoolRead
from sluiceway.runtime.resume_host import Host
from sluiceway.runtime.resume_owners import Generation, Owners
from sluiceway.runtime.resume_replays import Replays
from sluiceway.runtime.spool_mirror import MirroredSpool
from sluiceway.runtime.spool_reader import SpoolReader, SpoolUnreachable
from sluiceway.runtime.spool_writer import SpoolWriter

TENANT = ""  # of everybody, until requests carry a verified identity


class Resumes:
    """writer, reader: Redis, if there is one."""

    def __init__(
        self, config: Config, host: Host, *, writer: SpoolWriter | None = None, reader: SpoolReader | None = None
    ) -> None:
        self._floor_bytes = config.spool_floor_bytes
        self._max_asked = config.admission.max_streams
        self._kept = MirroredSpool(config.spool.limits(), writer)
        self._spool = self._kept.spool
        self._host = host
        self._reader = reader
        self._owners = Owners(self._spool, config.spool.max_stream_bytes)
        self._replays = Replays(host, self._spool, reader)
        self._asked: dict[str, Admit] = {}  # Redis is asked about these
        self._fresh: dict[str, None] = {}  # streams with news; a set that keeps their order
        self._overfull: list[str] = []
        self._ending: set[str] = set()  # request ids of streams that nobody reads and nobody keeps
        self._keys = self._taken_over = self._cut = self._abandoned = 0
        self._refusals: dict[str, int] = {}

    @property
    def spool(self) -> Spool:
        return self._spool

    # --- streams that the engine fills ---------------------------------------------------------------

    def open(self, stream_id: str, request_id: str, generation: Generation) -> None:
        """A resumable stream begins. Raises SpoolFull."""
        self._kept.open(stream_id, TENANT, self._floor_bytes)
        self._owners.add(stream_id, request_id, generation)

    def keep(self, stream_id: str, request_id: str, frame: Frame) -> None:
        """A frame was handed out, or nobody is there to take it. Of returned clients', nothing is kept twice."""
        if (owner := self._owners.find(stream_id, request_id)) is None:
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

    # --- what happens to any stream with an id -------------------------------------------------------

    def delivered(self, stream_id: str, request_id: str, frames: int) -> None:
        """So many frames of the stream ``request_id`` were delivered to its client."""
        if request_id in self._replays:
            confirmed = self._replays.delivered(request_id, frames)
            if self._replays.client_of(stream_id) == request_id:
                self._confirm(stream_id, confirmed)
        elif (owner := self._owners.find(stream_id, request_id)) is not None and owner.has_client:
            self._confirm(stream_id, frames)

    def moved(self, stream_id: str, request_id: str, state: State, now: float) -> None:
        """After an event of the stream: its client may have been let go."""
        if state is not State.DETACHED:
            return
        owner = self._owners.find(stream_id)
        if request_id in self._replays:
            self._replays.leave(stream_id, request_id, now, is_read=False)
            self._let_go(request_id, FinishReason.DETACHED, now)
        elif owner is None:  # nobody keeps what it makes
            self._let_go(request_id, FinishReason.CANCELLED, now)
        elif owner.request_id == request_id and owner.has_client:
            owner.has_client = False
            self._spool.leave(stream_id, now, is_read=False)

    def closed(self, stream_id: str, request_id: str, reason: FinishReason | None, now: float) -> None:
        """The stream is over: FINAL is out, and what its source had to say was said."""
        self._ending.discard(request_id)
        if request_id in self._replays:
            self._replays.close(stream_id, request_id, reason, now)
        elif (owner := self._owners.find(stream_id, request_id)) is not None:
            self._owners.remove(stream_id)
            self._end(stream_id)
            if owner.has_client:
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
            if not self._replays.open(message, position, "", now):
                self._spool.leave(stream_id, now, is_read=False)

    def found(self, news: SpoolFound, now: float) -> None:
        """Redis answered whether another replica's stream is there."""
        assert self._reader is not None  # it was asked
        message = self._asked.pop(news.key)
        if isinstance(news.answer, ResumeRefused):
            self._refuse(message, news.answer)
        elif not self._replays.open(message, news.answer, news.key, now):
            self._reader.leave(news.key)

    def read(self, news: SpoolRead) -> None:
        self._replays.read(news)

    def lost(self, news: SpoolLost) -> None:
        self._replays.lost(news)

    def elsewhere(self, news: ClientElsewhere, now: float) -> None:
        """The client of one of our streams came to another replica, or still is there."""
        stream_id = news.stream_id
        if news.is_new:
            self._take_over(stream_id, now)
        owner = self._owners.find(stream_id)
        if self._replays.client_of(stream_id) is not None or (owner is not None and owner.has_client):
            return  # it came back to us since
        with suppress(ResumeRefused):  # nothing more to get, or a notice that is late
            self._spool.look_up(stream_id, TENANT, news.sequence)
            self._spool.attach(stream_id, news.sequence)
        self._spool.leave(stream_id, now, is_read=False)
        self._fresh[stream_id] = None

    # --- the end of a turn ---------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Feed returned clients, end what does not fit, expire what is due. The driver's last act in a turn."""
        for stream_id in self._kept.expire(now):
            if (owner := self._owners.find(stream_id)) is not None:
                self._host.apply_to(owner.request_id, AbortRequested(FinishReason.CANCELLED), now)
        while self._overfull or self._fresh or self._replays.is_wanted:
            overfull, self._overfull = self._overfull, []
            for request_id in overfull:
                self._host.apply_to(request_id, AbortRequested(FinishReason.QUOTA), now)
            fresh, self._fresh = self._fresh, {}
            for stream_id in fresh:
                self._owners.pace(stream_id)
                self._replays.want(stream_id)
            self._replays.feed(now)

    def next_deadline(self) -> float | None:
        return self._spool.next_deadline()

    def statistics(self) -> dict[str, Any]:
        """For /statistics."""
        answer = self._kept.statistics() | {
            "generating": len(self._owners),
            "returned_open": len(self._replays),
            "resumed": self._replays.opened,
            "taken_over": self._taken_over,
            "held": self._owners.held,
            "cut": self._cut,
            "abandoned": self._abandoned,
            "refusals": dict(self._refusals),
        }
        if answer["redis"] is not None and self._reader is not None:
            answer["redis"]["read_errors"] = self._reader.errors
        return answer

    # --- within --------------------------------------------------------------------------------------

    def _let_go(self, request_id: str, reason: FinishReason, now: float) -> None:
        """Once: what ends a stream is also something that happens to it."""
        if request_id not in self._ending:
            self._ending.add(request_id)
            self._host.apply_to(request_id, AbortRequested(reason), now)

    def _take_over(self, stream_id: str, now: float) -> None:
        """Whoever was the client until now is let go, however alive the connection looks."""
        let_go = Decided(Decision(action=Action.DETACH, reason="taken_over"))
        if (request_id := self._replays.client_of(stream_id)) is not None:
            self._taken_over += 1
            self._host.apply_to(request_id, let_go, now)
        elif (owner := self._owners.find(stream_id)) is not None and owner.has_client:
            self._taken_over += 1
            self._host.apply_to(owner.request_id, let_go, now)
            owner.has_client = False  # also if its last frame was out already

    def _refuse(self, message: Admit, refusal: ResumeRefused) -> None:
        self._refusals[refusal.code] = self._refusals.get(refusal.code, 0) + 1
        is_away = isinstance(refusal, SpoolUnreachable)
        code = ErrorCode.UNAVAILABLE if is_away else ErrorCode.INVALID_ARG
        self._host.refuse(message, f"{refusal.code}: {refusal}", code)

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
        self._owners.remove(stream_id)
        self._kept.remove(stream_id)
