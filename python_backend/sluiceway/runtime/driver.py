"""Takes what happened, asks the core what to do, and passes that on. Owns all core state.

No clock and no thread in here: driver_thread.py calls turn() with the time, tests do it with literal ones.

Its parts: admission.py (who may come in), clients.py (what is heard of the clients), controls.py (what they
say themselves), engine_requests.py
(what is heard of the engine), reviewer.py (the policy), resume.py (clients that come back), dispatch.py
(where commands go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from sluiceway.core.commands import Frame, ReplaceGeneration, StreamClosed
from sluiceway.core.events import AbortRequested, DeadlineReached, Decided, Event, FinishReason
from sluiceway.core.registry import Registry
from sluiceway.core.spool import SpoolPosition
from sluiceway.core.spool_errors import SpoolFull
from sluiceway.core.transitions import IllegalEventError
from sluiceway.engine.protocol import TokenEvent
from sluiceway.runtime import messages
from sluiceway.runtime.admission import Admission
from sluiceway.runtime.clients import Clients
from sluiceway.runtime.config import Config
from sluiceway.runtime.controls import Controls
from sluiceway.runtime.dispatch import Dispatch
from sluiceway.runtime.engine_loop import EnginePort
from sluiceway.runtime.engine_requests import EngineRequests
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.finished import FinishedRing
from sluiceway.runtime.outbox import Outbox
from sluiceway.runtime.resume import Resumes
from sluiceway.runtime.reviewer import Reviewer
from sluiceway.runtime.source import EngineSource
from sluiceway.runtime.spool_reader import SpoolReader
from sluiceway.runtime.spool_source import SpoolSource
from sluiceway.runtime.spool_writer import SpoolWriter
from sluiceway.runtime.statistics import DriverSnapshot
from sluiceway.runtime.stream import Stream


class Driver:
    """One instance per process. engine: the engine thread; outbox: the pump's side of the streams.

    overhead_bytes(request): what a frame of that request costs on the wire beside its text. spool_writer,
    spool_reader: Redis, if there is one.
    """

    def __init__(
        self,
        config: Config,
        *,
        engine: EnginePort,
        outbox: Outbox,
        overhead_bytes: Callable[[messages.Admit], int],
        log: Callable[[str], None],
        spool_writer: SpoolWriter | None = None,
        spool_reader: SpoolReader | None = None,
    ) -> None:
        self._engine = engine
        self._log = log
        limits, admission = config.limits(frame_overhead_bytes=0), config.admission
        self._streams: dict[str, Stream] = {}
        self._registry = Registry(
            admission.max_streams,
            admission.max_buffered_bytes,
            max(limits.max_stream_bytes, admission.max_whole_answer_bytes),
        )
        self._resumes = Resumes(config, self, writer=spool_writer, reader=spool_reader)
        self._clients = Clients(
            self._streams,
            outbox,
            limit=limits.window,
            poll_s=config.pump.cancel_poll_s,
            tell=self._apply,
            delivered=self._resumes.delivered,
        )
        self._controls = Controls(self._clients, outbox, self._apply)
        self._admission = Admission(config, self._registry, self._clients, outbox, overhead_bytes)
        self._requests = EngineRequests(engine, config.degraded)
        self._reviewer = Reviewer(config, self._resumes.spool, self._find, log)
        self._dispatch = Dispatch(outbox, self._keep)
        self._drains: list[Future[None]] = []
        self.finished = FinishedRing()

    def turn(self, news: Iterable[messages.Message], now: float) -> None:
        """Handle what came, in order, then whatever is due at ``now``."""
        for message in news:
            self._take(message, now)
        for request_id in self._registry.due(now):
            self._apply(self._streams[request_id], DeadlineReached(), now)
        for stream, decision in self._reviewer.review(now):
            self._apply(stream, Decided(decision), now)
        self._clients.poll(now)
        self._resumes.settle(now)
        if self._drains and not self._streams:
            for done in self._drains:
                done.set_result(None)
            self._drains.clear()

    def next_deadline(self) -> float | None:
        """When turn() has something to do even if nothing comes."""
        parts = (self._registry, self._clients, self._reviewer, self._resumes)
        return min((at for part in parts if (at := part.next_deadline()) is not None), default=None)

    def _take(self, message: messages.Message, now: float) -> None:
        match message:
            case messages.Tokens(events, at, load):
                if load is not None:
                    self._reviewer.observe(load)
                for event in events:
                    self._tokens(event, at, now)
            case messages.SendDone(request_id, event):
                self.apply_to(request_id, event, now)
            case messages.Records(records):
                for record in records:
                    self._clients.record(record, now)
            case messages.Admit():
                self._admit(message, now)
            case messages.Control():
                self._controls.take(message, now)
            case messages.Refuse(rpc_id, path, text, code):
                self._admission.refuse(rpc_id, path, text, code)
            case messages.PollDone():
                self._clients.poll_done(message, now)
            case messages.SpoolFound():
                self._resumes.found(message, now)
            case messages.SpoolRead():
                self._resumes.read(message)
            case messages.SpoolLost():
                self._resumes.lost(message)
            case messages.ClientElsewhere():
                self._resumes.elsewhere(message, now)
            case messages.Drain(done):
                self._admission.is_draining = True
                self._drains.append(done)
                for request_id in list(self._streams):
                    self.apply_to(request_id, AbortRequested(FinishReason.SHUTDOWN), now)
            case messages.EngineDied():
                self._admission.is_engine_dead = True
                for engine_id in self._requests.ids():
                    self._tokens(TokenEvent(engine_id, (), b"", FinishReason.ERROR), now, now)
            case messages.Snapshot(answer):
                answer.set_result(self._snapshot(now))

    def _admit(self, message: messages.Admit, now: float) -> None:
        if not self._admission.has_room(message):
            return
        request, request_id = message.request, self._admission.next_id
        if request.resume_frame is not None:
            self._resumes.come_back(message, now)
            return
        source = EngineSource(self._engine, request_id)
        if request.stream_id:
            try:
                self._resumes.open(request.stream_id, request_id, source)
            except SpoolFull as full:
                self.refuse(message, f"{full}; try again later", ErrorCode.UNAVAILABLE)
                return
        stream = self._streams[request_id] = self._admission.open(message, source, now)
        self._requests.begin(stream, message.prompt_token_ids)
        self.attached(request_id, now)

    # --- what returning clients' streams need (resume_host.Host) -------------------------------------

    def apply_to(self, request_id: str, event: Event, now: float) -> None:
        """As if the event had come; unknown ids are ignored."""
        if (stream := self._streams.get(request_id)) is not None:
            self._apply(stream, event, now)

    def attach(self, message: messages.Admit, position: SpoolPosition, source: SpoolSource, now: float) -> str | None:
        """Open a stream that is fed from the spool; None if there is no room, of which the client is told."""
        if not self._admission.has_room(message):
            return None
        stream = self._admission.open(message, source, now, position)
        self._streams[stream.request_id] = stream
        return stream.request_id

    def attached(self, request_id: str, now: float) -> None:
        """Everybody knows the stream: it may hear that its client left before it was open."""
        self._clients.attached(self._streams[request_id], now)

    def refuse(self, message: messages.Admit, text: str, code: ErrorCode) -> None:
        """A client cannot have what it came for."""
        self._admission.refuse(message.request.rpc_id, message.path, text, code)

    # -------------------------------------------------------------------------------------------------

    def _find(self, request_id: str) -> Stream | None:
        """An open stream, by its own id or by the engine's."""
        return self._streams.get(request_id) or self._requests.find(request_id)

    def _keep(self, stream: Stream, frame: Frame) -> None:
        """A frame of a resumable stream, for when its client comes back."""
        self._resumes.keep(stream.request.stream_id, stream.request_id, frame)

    def _tokens(self, event: TokenEvent, at: float, now: float) -> None:
        if (stream := self._requests.find(event.request_id)) is not None:
            for heard in self._requests.hear(stream, event, at):
                self._apply(stream, heard, now)

    def _apply(self, stream: Stream, event: Event, now: float) -> None:
        try:
            commands = stream.sender.handle(event, now)
        except IllegalEventError as error:
            # A defect in one stream's path. It ends that stream, not the driver and so every other one.
            self._log(f"{stream.request_id}: {error}; ending the stream")
            commands = stream.sender.handle(AbortRequested(FinishReason.ERROR), now)
        for command in commands:
            match command:
                case StreamClosed():
                    self._close(stream, now)
                case ReplaceGeneration():
                    self._requests.replace(stream)
                case _:
                    self._dispatch.execute(stream, command)
        self._registry.touch(stream.request_id)
        self._reviewer.follow(stream, now)
        if stream.request.stream_id and stream.request_id in self._streams:
            self._resumes.moved(stream.request.stream_id, stream.request_id, stream.sender.state, now)

    def _close(self, stream: Stream, now: float) -> None:
        statistics = stream.sender.statistics(now)
        self.finished.add(stream, statistics, now)
        self._clients.leave(stream)
        self._registry.remove(stream.request_id)
        del self._streams[stream.request_id]
        if stream.request.stream_id:
            self._resumes.closed(stream.request.stream_id, stream.request_id, statistics.finish_reason, now)

    def _snapshot(self, now: float) -> DriverSnapshot:
        return DriverSnapshot(
            now=now,
            streams=tuple(stream.snapshot(now) for stream in self._streams.values()),
            totals=self._registry.totals(),
            refused=self._admission.refused,
            finished=dict(self.finished.reasons),
            disconnects=self._clients.disconnects,
            aborts=self._dispatch.aborts,
            behind=self._reviewer.behind,
            degraded=self._requests.replaced,
            decisions=self._reviewer.counts(),
            spool=self._resumes.statistics(),
            rpcs=self._clients.rpcs,
            is_draining=self._admission.is_draining,
        )
