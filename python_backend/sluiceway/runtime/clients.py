"""What is heard of the open streams' clients: Envoy's records, and Triton's word where no record comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluiceway.core.events import ClientGone, Event, Progress, SignalLost
from sluiceway.core.limits import Size
from sluiceway.core.record import Record
from sluiceway.runtime.messages import PollDone
from sluiceway.runtime.outbox import Outbox
from sluiceway.runtime.polls import CancelPolls
from sluiceway.runtime.rpcs import Rpc, RpcTable
from sluiceway.runtime.stream import Stream


class Clients:
    """streams: the open ones. tell(stream, event, now): what happened to a stream by its client.
    delivered(stream_id, request_id, frames): so much of a resumable stream is with its client.

    limit: of an RPC's window. poll_s: how often Triton is asked, in seconds. Times are the driver's clock.
    disconnects: streams whose client left while they were open.
    """

    def __init__(
        self,
        streams: Mapping[str, Stream],
        outbox: Outbox,
        *,
        limit: Size,
        poll_s: float,
        tell: Callable[[Stream, Event, float], None],
        delivered: Callable[[str, str, int], None],
    ) -> None:
        self._streams = streams
        self._outbox = outbox
        self._tell = tell
        self._delivered = delivered
        self._rpcs = RpcTable(limit)
        self._polls = CancelPolls(poll_s)
        self.disconnects = 0

    @property
    def rpcs(self) -> int:
        """How many RPCs are known."""
        return len(self._rpcs)

    def next_deadline(self) -> float | None:
        """When poll() has something to do."""
        return self._polls.next_deadline

    def join(self, rpc_id: str | None, request_id: str, now: float, *, acks: bool = False) -> Rpc:
        """A stream opens for the client of that RPC; None: nothing will be heard of it but Triton's word and acks."""
        self._polls.add(request_id, now)
        return self._rpcs.join(rpc_id, request_id, acks=acks)

    def streams_of(self, rpc_id: str, client_id: str) -> list[Stream]:
        """The open streams of that RPC which the client gave that id."""
        rpc = self._rpcs.find(rpc_id)
        streams = [] if rpc is None else [self._streams[request_id] for request_id in rpc.requests]
        return [stream for stream in streams if stream.request.client_id == client_id]

    def attached(self, stream: Stream, now: float) -> None:
        """Everybody knows the stream: it may hear that its client left before it was open."""
        if stream.rpc.ended is not None:
            self._gone(stream, stream.rpc.ended, now)

    def leave(self, stream: Stream) -> None:
        """The stream is over."""
        self._rpcs.leave(stream.rpc, stream.request_id)

    def record(self, record: Record, now: float) -> None:
        """Envoy's word."""
        rpc, progress = self._rpcs.observe(record)
        self._progress(progress, now)
        if rpc.ended is not None:
            for request_id in list(rpc.requests):
                if request_id in self._streams:
                    self._gone(self._streams[request_id], rpc.ended, now)
        elif record.expired:
            self._records_stopped(rpc)

    def acknowledge(self, stream: Stream, frames: int, body_bytes: int | None, now: float) -> None:
        """The client's own word: it has that many of the stream's frames, or will once ``body_bytes`` are let out."""
        self._progress(stream.rpc.window.acknowledge(stream.request_id, frames, body_bytes), now)

    def poll_done(self, answer: PollDone, now: float) -> None:
        """Triton's word."""
        if (stream := self._streams.get(answer.request_id)) is None:
            return
        if answer.cancelled:
            self._gone(stream, "cancelled", now)
        elif answer.records_expired:
            self._tell(stream, SignalLost(), now)

    def poll(self, now: float) -> None:
        """Ask after clients that no record tells of; the others are only looked at again later."""
        for request_id in self._polls.due(now):
            stream = self._streams.get(request_id)
            if stream is not None and not stream.is_final_queued:
                if not stream.rpc.window.has_signal:
                    self._outbox.poll(stream, records_expired=False)
                self._polls.again(request_id, now)

    def _progress(self, progress: Mapping[str, Progress], now: float) -> None:
        for request_id, event in progress.items():
            stream = self._streams[request_id]
            if stream.request.stream_id:
                frames = event.consumed_frames if stream.request.acks else event.delivered_frames
                self._delivered(stream.request.stream_id, request_id, frames)
            self._tell(stream, event, now)

    def _records_stopped(self, rpc: Rpc) -> None:
        """Ask Triton whether the client is still there; the answer decides between gone and no signal."""
        for request_id in rpc.requests:
            if not self._streams[request_id].is_final_queued:
                self._outbox.poll(self._streams[request_id], records_expired=True)

    def _gone(self, stream: Stream, cause: str, now: float) -> None:
        if stream.client_gone_at is None:
            stream.client_gone_at = now
            stream.state_when_gone = stream.sender.state.value
            self.disconnects += 1
        self._tell(stream, ClientGone(cause), now)
