"""Takes what happened, asks the core what to do, and passes that on. Owns all core state.

No clock and no thread in here: driver_thread.py calls turn() with the time, tests do it with literal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from sluiceway.core.commands import Frame, ReplaceGeneration, StreamClosed
from sluiceway.core.events import (
    AbortRequested,
    ClientGone,
    DeadlineReached,
    Decided,
    EngineFinished,
    Event,
    FinishReason,
    SignalLost,
    TokensProduced,
)
from sluiceway.core.record import Record
from sluiceway.core.registry import AdmissionRefused, Registry
from sluiceway.core.spool import SpoolPosition
from sluiceway.core.spool_errors import SpoolFull
from sluiceway.core.transitions import IllegalEventError
from sluiceway.engine.protocol import EngineRequest, SamplingParams, TokenEvent
from sluiceway.runtime import messages
from sluiceway.runtime.config import Config
from sluiceway.runtime.dispatch import Dispatch
from sluiceway.runtime.engine_loop import EnginePort
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.finished import FinishedRing
from sluiceway.runtime.outbox import Outbox
from sluiceway.runtime.polls import CancelPolls
from sluiceway.runtime.response_path import ResponsePath
from sluiceway.runtime.resume import Resumes
from sluiceway.runtime.reviewer import Reviewer
from sluiceway.runtime.rpcs import Rpc, RpcTable
from sluiceway.runtime.source import EngineSource, TokenSource
from sluiceway.runtime.spool_reader import SpoolReader
from sluiceway.runtime.spool_source import SpoolSource
from sluiceway.runtime.spool_writer import SpoolWriter
from sluiceway.runtime.statistics import DriverSnapshot
from sluiceway.runtime.stream import Stream, open_stream

_START = SpoolPosition(sequence=0, first_token_index=0)


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
        self._config = config
        self._engine = engine
        self._outbox = outbox
        self._dispatch = Dispatch(outbox, self._keep)
        self._overhead_bytes = overhead_bytes
        self._log = log
        limits = config.limits(frame_overhead_bytes=0)
        admission = config.admission
        self._registry = Registry(
            admission.max_streams,
            admission.max_buffered_bytes,
            max(limits.max_stream_bytes, admission.max_whole_answer_bytes),
        )
        self._rpcs = RpcTable(limits.window)
        self._resumes = Resumes(config, self, writer=spool_writer, reader=spool_reader)
        self._reviewer = Reviewer(config, self._resumes.spool, self._find, log)
        self._streams: dict[str, Stream] = {}
        self._of_engine: dict[str, Stream] = {}  # by the engine's id; news of any other id is too late
        self._polls = CancelPolls(config.pump.cancel_poll_s)
        self._count = 0
        self._refused = self._disconnects = self._degraded = 0
        self._is_engine_dead = False
        self._is_draining = False
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
        self._poll(now)
        self._resumes.settle(now)
        if self._drains and not self._streams:
            for done in self._drains:
                done.set_result(None)
            self._drains.clear()

    def next_deadline(self) -> float | None:
        """When turn() has something to do even if nothing comes."""
        deadlines = (
            self._registry.next_deadline(),
            self._polls.next_deadline,
            self._reviewer.next_deadline(),
            self._resumes.next_deadline(),
        )
        return min((at for at in deadlines if at is not None), default=None)

    def _take(self, message: messages.Message, now: float) -> None:
        match message:
            case messages.Tokens(events, at, load):
                if load is not None:
                    self._reviewer.observe(load)
                for event in events:
                    self._tokens(event, at, now)
            case messages.SendDone(request_id, event):
                self._apply_to(request_id, event, now)
            case messages.Records(records):
                for record in records:
                    self._record(record, now)
            case messages.Admit():
                self._admit(message, now)
            case messages.Refuse(rpc_id, path, text, code):
                self._refuse(rpc_id, path, text, code)
            case messages.PollDone(request_id, cancelled, records_expired):
                if cancelled:
                    self._client_gone(request_id, "cancelled", now)
                elif records_expired:
                    self._apply_to(request_id, SignalLost(), now)
            case messages.SpoolFound():
                self._resumes.found(message, now)
            case messages.SpoolRead():
                self._resumes.read(message)
            case messages.SpoolLost():
                self._resumes.lost(message)
            case messages.ClientElsewhere():
                self._resumes.elsewhere(message, now)
            case messages.Drain(done):
                self._is_draining = True
                self._drains.append(done)
                for request_id in list(self._streams):
                    self._apply_to(request_id, AbortRequested(FinishReason.SHUTDOWN), now)
            case messages.EngineDied():
                self._is_engine_dead = True
                for engine_id in list(self._of_engine):
                    self._tokens(TokenEvent(engine_id, (), b"", FinishReason.ERROR), now, now)
            case messages.Snapshot(answer):
                answer.set_result(self._snapshot(now))

    def _admit(self, message: messages.Admit, now: float) -> None:
        request = message.request
        if not self._has_room(message):
            return
        if request.resume_frame is not None:
            self._resumes.come_back(message, now)
            return
        request_id = f"r{self._count + 1}"
        source = EngineSource(self._engine, request_id)
        if request.stream_id:
            try:
                self._resumes.open(request.stream_id, request_id, source)
            except SpoolFull as full:
                self._refuse(request.rpc_id, message.path, f"{full}; try again later", ErrorCode.UNAVAILABLE)
                return
        stream = self._open(message, source, now)
        stream.prompt_tokens = len(message.prompt_token_ids)
        if self._config.degraded.enabled:
            stream.prompt_token_ids = message.prompt_token_ids
        self._submit(stream, request_id, message.prompt_token_ids, request.sampling)
        self.attached(request_id, now)

    def _has_room(self, message: messages.Admit) -> bool:
        """Whether a stream may open now; if not, the client is told."""
        request = message.request
        if self._is_draining or self._is_engine_dead:
            why = "the engine failed" if self._is_engine_dead else "the server is shutting down"
            self._refuse(request.rpc_id, message.path, f"{why}; try again elsewhere", ErrorCode.UNAVAILABLE)
            return False
        try:
            self._registry.check_room()
        except AdmissionRefused as refusal:  # the registry counts these
            self._outbox.refuse(request.rpc_id, message.path, f"admission.{refusal}", ErrorCode.UNAVAILABLE)
            return False
        return True

    def _open(
        self, message: messages.Admit, source: TokenSource, now: float, position: SpoolPosition = _START
    ) -> Stream:
        self._count += 1
        request_id = f"r{self._count}"
        rpc = self._rpcs.join(message.request.rpc_id, request_id)
        stream = open_stream(
            request_id,
            message.request,
            message.path,
            rpc,
            source,
            self._config.limits(self._overhead_bytes(message)),
            self._config.admission.max_whole_answer_bytes,
            now,
            first_sequence=position.sequence,
            first_token_index=position.first_token_index,
        )
        self._streams[request_id] = stream
        self._registry.admit(request_id, stream.sender)
        self._polls.add(request_id, now)
        return stream

    def _submit(
        self, stream: Stream, engine_id: str, prompt_token_ids: tuple[int, ...], sampling: SamplingParams
    ) -> None:
        stream.engine_id = engine_id
        self._of_engine[engine_id] = stream
        self._engine.submit(EngineRequest(request_id=engine_id, prompt_token_ids=prompt_token_ids, sampling=sampling))

    def _replace(self, stream: Stream) -> None:
        """A short answer in place of the long one. What the engine still says of that one is not heard."""
        self._degraded += 1
        stream.source.abort()
        del self._of_engine[stream.engine_id]
        engine_id = f"{stream.request_id}:degraded"
        stream.source = EngineSource(self._engine, engine_id)
        asked = stream.request.sampling
        most = min(asked.max_tokens, self._config.degraded.max_tokens)
        # The same prompt and stop strings, and no luck: the likeliest answer there is.
        short = SamplingParams(max_tokens=most, temperature=0.0, stop=asked.stop, ignore_eos=asked.ignore_eos)
        self._submit(stream, engine_id, stream.prompt_token_ids, short)

    def _find(self, request_id: str) -> Stream | None:
        """An open stream, by its own id or by the engine's."""
        return self._streams.get(request_id) or self._of_engine.get(request_id)

    def _keep(self, stream: Stream, frame: Frame) -> None:
        """A frame of a resumable stream, for when its client comes back."""
        self._resumes.keep(stream.request.stream_id, stream.request_id, frame)

    # --- what returning clients' streams need (resume.Host) ------------------------------------------

    def apply_to(self, request_id: str, event: Event, now: float) -> None:
        """As if the event had come; unknown ids are ignored."""
        self._apply_to(request_id, event, now)

    def attach(self, message: messages.Admit, position: SpoolPosition, source: SpoolSource, now: float) -> str | None:
        """Open a stream that is fed from the spool; None if there is no room, of which the client is told."""
        return self._open(message, source, now, position).request_id if self._has_room(message) else None

    def attached(self, request_id: str, now: float) -> None:
        """Everybody knows the stream: it may hear that its client left before it was open."""
        rpc = self._streams[request_id].rpc
        if rpc.ended is not None:
            self._client_gone(request_id, rpc.ended, now)

    def refuse(self, message: messages.Admit, text: str, code: ErrorCode) -> None:
        """A client cannot have what it came back for."""
        self._refuse(message.request.rpc_id, message.path, text, code)

    # -------------------------------------------------------------------------------------------------

    def _refuse(self, rpc_id: str | None, path: ResponsePath, text: str, code: ErrorCode) -> None:
        self._refused += 1
        self._outbox.refuse(rpc_id, path, text, code)

    def _tokens(self, event: TokenEvent, at: float, now: float) -> None:
        stream = self._of_engine.get(event.request_id)
        if stream is None:
            return
        if event.token_ids:
            stream.token_times.append(at)
            stream.produced_tokens += len(event.token_ids)
            stream.first_token_at = stream.first_token_at or at
        reason = event.finish_reason
        if stream.whole is not None:
            stream.whole.add(event)
            if stream.whole.is_full and reason is None:
                stream.source.abort()
            elif stream.whole.is_full:
                reason = FinishReason.LENGTH
        elif event.token_ids or event.text:
            self._apply(stream, TokensProduced(event.token_ids, event.text), now)
        if reason is not None:
            stream.kv_free_at = at
            del self._of_engine[event.request_id]
            self._apply(stream, EngineFinished(reason), now)

    def _record(self, record: Record, now: float) -> None:
        rpc, progress = self._rpcs.observe(record)
        for request_id, event in progress.items():
            if stream_id := self._streams[request_id].request.stream_id:
                self._resumes.delivered(stream_id, request_id, event.delivered_frames)
            self._apply_to(request_id, event, now)
        if rpc.ended is not None:
            for request_id in list(rpc.requests):
                self._client_gone(request_id, rpc.ended, now)
        elif record.expired:
            self._records_stopped(rpc)

    def _records_stopped(self, rpc: Rpc) -> None:
        """Ask Triton whether the client is still there; the answer decides between gone and no signal."""
        for request_id in rpc.requests:
            if not self._streams[request_id].is_final_queued:
                self._outbox.poll(self._streams[request_id], records_expired=True)

    def _client_gone(self, request_id: str, cause: str, now: float) -> None:
        stream = self._streams.get(request_id)
        if stream is None:
            return
        if stream.client_gone_at is None:
            stream.client_gone_at = now
            stream.state_when_gone = stream.sender.state.value
            self._disconnects += 1
        self._apply(stream, ClientGone(cause), now)

    def _apply_to(self, request_id: str, event: Event, now: float) -> None:
        if (stream := self._streams.get(request_id)) is not None:
            self._apply(stream, event, now)

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
                    self._replace(stream)
                case _:
                    self._dispatch.execute(stream, command)
        self._registry.touch(stream.request_id)
        self._reviewer.follow(stream, now)
        if stream.request.stream_id and stream.request_id in self._streams:
            self._resumes.moved(stream.request.stream_id, stream.request_id, stream.sender.state, now)

    def _close(self, stream: Stream, now: float) -> None:
        statistics = stream.sender.statistics(now)
        self.finished.add(stream, statistics, now)
        self._rpcs.leave(stream.rpc, stream.request_id)
        self._registry.remove(stream.request_id)
        del self._streams[stream.request_id]
        if stream.request.stream_id:
            self._resumes.closed(stream.request.stream_id, stream.request_id, statistics.finish_reason, now)

    def _poll(self, now: float) -> None:
        """Ask after clients that no record tells of; the others are only looked at again later."""
        for request_id in self._polls.due(now):
            stream = self._streams.get(request_id)
            if stream is not None and not stream.is_final_queued:
                if not stream.rpc.window.has_signal:
                    self._outbox.poll(stream, records_expired=False)
                self._polls.again(request_id, now)

    def _snapshot(self, now: float) -> DriverSnapshot:
        return DriverSnapshot(
            now=now,
            streams=tuple(stream.snapshot(now) for stream in self._streams.values()),
            totals=self._registry.totals(),
            refused=self._refused,
            finished=dict(self.finished.reasons),
            disconnects=self._disconnects,
            aborts=self._dispatch.aborts,
            behind=self._reviewer.behind,
            degraded=self._degraded,
            decisions=self._reviewer.counts(),
            spool=self._resumes.statistics(),
            rpcs=len(self._rpcs),
            is_draining=self._is_draining,
        )
