"""Replays: returned clients' streams, each fed from what is kept in this process or in Redis."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.core.commands import Frame
from sluiceway.core.events import AbortRequested, EngineFinished, FinishReason, FrameReplayed
from sluiceway.core.spool import Spool, SpoolPosition
from sluiceway.core.spool_errors import ResumeRefused
from sluiceway.runtime.messages import Admit, SpoolLost, SpoolRead
from sluiceway.runtime.resume_host import Host
from sluiceway.runtime.spool_reader import SpoolReader
from sluiceway.runtime.spool_source import SpoolSource

_READ_BYTES = 16 * 1024


@dataclass(slots=True, eq=False)
class Replay:
    """key: under which Redis is asked for its frames, "" if it is not. confirmed: frames below were delivered."""

    source: SpoolSource
    key: str
    confirmed: int


class Replays:
    """By request id; a stream of this process has at most one that is its client. opened: how many ever."""

    def __init__(self, host: Host, spool: Spool, reader: SpoolReader | None) -> None:
        self.opened = 0
        self._host = host
        self._spool = spool
        self._reader = reader
        self._replays: dict[str, Replay] = {}
        self._client_of: dict[str, str] = {}  # stream id to the request id that is its client
        self._remote: dict[str, str] = {}  # key to request id
        self._wanted: list[SpoolSource] = []

    def __len__(self) -> int:
        return len(self._replays)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._replays

    def client_of(self, stream_id: str) -> str | None:
        """The returned client's request id; None if there is none, or none that reads this process's frames."""
        return self._client_of.get(stream_id)

    def open(self, message: Admit, position: SpoolPosition, key: str, now: float) -> bool:
        """Whether there was room for it. key: as Replay.key."""
        stream_id = message.request.stream_id
        source = SpoolSource(stream_id, position.sequence, is_remote=bool(key), on_wanted=self._wanted.append)
        request_id = self._host.attach(message, position, source, now)
        if request_id is None:
            return False
        self.opened += 1
        source.request_id = request_id
        self._replays[request_id] = Replay(source, key, position.sequence)
        if key:
            self._remote[key] = request_id
        else:
            self._client_of[stream_id] = request_id
        self._wanted.append(source)
        self._host.attached(request_id, now)
        return True

    def delivered(self, request_id: str, frames: int) -> int:
        """So many frames of it were delivered; below which sequence number the client has everything."""
        replay = self._replays[request_id]
        replay.confirmed = replay.source.first_sequence + frames
        return replay.confirmed

    def leave(self, stream_id: str, request_id: str, now: float, *, is_read: bool) -> None:
        """Its client left; nothing happens if another is the client by now."""
        if self._client_of.get(stream_id) == request_id:
            del self._client_of[stream_id]
            self._spool.leave(stream_id, now, is_read=is_read)

    def close(self, stream_id: str, request_id: str, reason: FinishReason | None, now: float) -> None:
        replay = self._replays.pop(request_id)
        is_read = replay.source.is_over and reason is not FinishReason.DETACHED
        self.leave(stream_id, request_id, now, is_read=is_read)
        if self._remote.pop(replay.key, None) is not None and self._reader is not None:
            self._reader.leave(replay.key)

    def read(self, news: SpoolRead) -> None:
        if (replay := self._replays.get(self._remote.get(news.key, ""))) is not None:
            replay.source.add(news.frames)

    def lost(self, news: SpoolLost) -> None:
        if (replay := self._replays.get(self._remote.get(news.key, ""))) is not None:
            replay.source.lose(news.why)

    # --- feeding -------------------------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """feed() has something to do."""
        return bool(self._wanted)

    def want(self, stream_id: str) -> None:
        """There is more of the stream, which its client may want."""
        if (replay := self._replays.get(self._client_of.get(stream_id, ""))) is not None:
            self._wanted.append(replay.source)

    def feed(self, now: float) -> None:
        """Once round; what is wanted meanwhile is for the next."""
        wanted = self._wanted.copy()
        self._wanted.clear()
        for source in wanted:
            self._feed(source, now)

    def _feed(self, source: SpoolSource, now: float) -> None:
        request_id = source.request_id
        if request_id not in self._replays:
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
            replay = self._replays[request_id]
            self._reader.more(replay.key, replay.confirmed)

    def _next(self, source: SpoolSource) -> Frame | None:
        """Of what this process keeps."""
        if source.is_remote:
            return None
        try:
            source.put(self._spool.read(source.stream_id, source.next_sequence, _READ_BYTES))
        except ResumeRefused as refusal:  # a stream with a client is not forgotten; should it be, say so
            source.lost = str(refusal)
        return source.take()
