"""Takes what happened, asks the core what to do, and passes that on. Owns all core state.

No clock and no thread in here: driver_thread.py calls turn() with the time, tests do it with literal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from sluiceway.core.commands import StreamClosed
from sluiceway.core.events import (
    AbortRequested,
    ClientGone,
    DeadlineReached,
    EngineFinished,
    Event,
    FinishReason,
    SignalLost,
    TokensProduced,
)
from sluiceway.core.record import Record
from sluiceway.core.registry import AdmissionRefused, Registry
from sluiceway.core.transitions import IllegalEventError
from sluiceway.engine.protocol import EngineRequest, TokenEvent
from sluiceway.runtime import messages
from sluiceway.runtime.config import Config
from sluiceway.runtime.dispatch import Dispatch
from sluiceway.runtime.engine_loop import EnginePort
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.finished import FinishedRing
from sluiceway.runtime.outbox import Outbox
from sluiceway.runtime.polls import CancelPolls
from sluiceway.runtime.response_path import ResponsePath
from sluiceway.runtime.rpcs import Rpc, RpcTable
from sluiceway.runtime.statistics import DriverSnapshot
from sluiceway.runtime.stream import Stream, open_stream


class Driver:
    """One instance per process. engine: the engine thread; outbox: the pump's side of the streams.

    overhead_bytes(request): what a frame of that request costs on the wire beside its text.
    """

    def __init__(
        self,
        config: Config,
        *,
        engine: EnginePort,
        outbox: Outbox,
        overhead_bytes: Callable[[messages.Admit], int],
        log: Callable[[str], None],
    ) -> None:
        self._config = config
        self._submit = engine.submit
        self._outbox = outbox
        self._dispatch = Dispatch(engine, outbox)
        self._overhead_bytes = overhead_bytes
        self._log = log
        limits = config.flow_control.limits(frame_overhead_bytes=0)
        admission = config.admission
        self._registry = Registry(
            admission.max_streams,
            admission.max_buffered_bytes,
            max(limits.max_stream_bytes, admission.max_whole_answer_bytes),
        )
        self._rpcs = RpcTable(limits.window)
        self._streams: dict[str, Stream] = {}
        self._polls = CancelPolls(config.pump.cancel_poll_s)
        self._count = 0
        self._refused = self._disconnects = 0
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
        self._poll(now)
        if self._drains and not self._streams:
            for done in self._drains:
                done.set_result(None)
            self._drains.clear()

    def next_deadline(self) -> float | None:
        """When turn() has something to do even if nothing comes."""
        deadlines = (self._registry.next_deadline(), self._polls.next_deadline)
        return min((at for at in deadlines if at is not None), default=None)

    def _take(self, message: messages.Message, now: float) -> None:
        match message:
            case messages.Tokens(events, at):
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
            case messages.Drain(done):
                self._is_draining = True
                self._drains.append(done)
                for request_id in list(self._streams):
                    self._apply_to(request_id, AbortRequested(FinishReason.SHUTDOWN), now)
            case messages.EngineDied():
                self._is_engine_dead = True
                for request_id in list(self._streams):
                    if self._streams[request_id].kv_free_at is None:
                        self._tokens(TokenEvent(request_id, (), b"", FinishReason.ERROR), now, now)
            case messages.Snapshot(answer):
                answer.set_result(self._snapshot(now))

    def _admit(self, message: messages.Admit, now: float) -> None:
        request = message.request
        if self._is_draining or self._is_engine_dead:
            why = "the engine failed" if self._is_engine_dead else "the server is shutting down"
            self._refuse(request.rpc_id, message.path, f"{why}; try again elsewhere", ErrorCode.UNAVAILABLE)
            return
        try:
            self._registry.check_room()
        except AdmissionRefused as refusal:  # the registry counts these
            self._outbox.refuse(request.rpc_id, message.path, f"admission.{refusal}", ErrorCode.UNAVAILABLE)
            return
        self._count += 1
        request_id = f"r{self._count}"
        rpc = self._rpcs.join(request.rpc_id, request_id)
        limits = self._config.flow_control.limits(self._overhead_bytes(message))
        whole = self._config.admission.max_whole_answer_bytes
        stream = open_stream(request_id, request, message.path, rpc, limits, whole, now)
        self._streams[request_id] = stream
        self._registry.admit(request_id, stream.sender)
        submission = EngineRequest(
            request_id=request_id, prompt_token_ids=message.prompt_token_ids, sampling=request.sampling
        )
        self._submit(submission)
        self._polls.add(request_id, now)
        if rpc.ended is not None:
            self._client_gone(request_id, rpc.ended, now)

    def _refuse(self, rpc_id: str | None, path: ResponsePath, text: str, code: ErrorCode) -> None:
        self._refused += 1
        self._outbox.refuse(rpc_id, path, text, code)

    def _tokens(self, event: TokenEvent, at: float, now: float) -> None:
        stream = self._streams.get(event.request_id)
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
                self._dispatch.cut_short(event.request_id)
            elif stream.whole.is_full:
                reason = FinishReason.LENGTH
        elif event.token_ids or event.text:
            self._apply(stream, TokensProduced(event.token_ids, event.text), now)
        if reason is not None:
            stream.kv_free_at = at
            self._apply(stream, EngineFinished(reason), now)

    def _record(self, record: Record, now: float) -> None:
        rpc, progress = self._rpcs.observe(record)
        for request_id, event in progress.items():
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
            if isinstance(command, StreamClosed):
                self._close(stream, now)
            else:
                self._dispatch.execute(stream, command)
        self._registry.touch(stream.request_id)

    def _close(self, stream: Stream, now: float) -> None:
        self.finished.add(stream, stream.sender.statistics(now), now)
        self._rpcs.leave(stream.rpc, stream.request_id)
        self._registry.remove(stream.request_id)
        del self._streams[stream.request_id]

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
            rpcs=len(self._rpcs),
            is_draining=self._is_draining,
        )
