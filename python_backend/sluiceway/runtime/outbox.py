"""What the driver asks of the pump. Every job ends in a message to the driver, or has nothing to say."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.core.commands import Frame
from sluiceway.core.events import FrameSent, SendFailed
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.messages import Message, PollDone, SendDone
from sluiceway.runtime.pump import JobKind, Pump
from sluiceway.runtime.response_path import ResponsePath
from sluiceway.runtime.stream import Stream


class Outbox:
    """Jobs of one RPC share a key, so its messages leave in the order in which its ledger booked them."""

    def __init__(self, pump: Pump, post: Callable[[Message], None], log: Callable[[str], None]) -> None:
        self._pump = pump
        self._post = post
        self._log = log

    def send(self, stream: Stream, frame: Frame) -> None:
        self._pump.submit(stream.rpc.rpc_id, JobKind.SEND, lambda: self._send(stream, frame))

    def close(self, stream: Stream) -> None:
        self._pump.submit(stream.rpc.rpc_id, JobKind.SEND, lambda: self._quietly(stream.path.close))

    def refuse(self, rpc_id: str | None, path: ResponsePath, message: str, code: ErrorCode) -> None:
        key = rpc_id if rpc_id is not None else f"refusal:{id(path)}"
        self._pump.submit(key, JobKind.SEND, lambda: self._quietly(lambda: path.refuse(message, code)))

    def answer(self, rpc_id: str | None, path: ResponsePath, levels: str | None) -> None:
        """Of a control request: what it asked for, or nothing."""
        key = rpc_id if rpc_id is not None else f"control:{id(path)}"
        send = path.close if levels is None else lambda: path.send_levels(levels)
        self._pump.submit(key, JobKind.SEND, lambda: self._quietly(send))

    def poll(self, stream: Stream, *, records_expired: bool) -> None:
        self._pump.submit(stream.rpc.rpc_id, JobKind.POLL, lambda: self._poll(stream, records_expired))

    def _send(self, stream: Stream, frame: Frame) -> None:
        try:
            stream.path.send(frame)
        except Exception as error:
            self._pump.count_failed_send()
            event: FrameSent | SendFailed = SendFailed(f"send() raised {type(error).__name__}")
            self._log(f"{stream.request_id}: send() raised {type(error).__name__}: {error}")
        else:
            event = FrameSent(frame.sequence)
        self._post(SendDone(stream.request_id, event))

    def _quietly(self, send: Callable[[], None]) -> None:
        """For responses that nobody waits for: a failure is counted and logged."""
        try:
            send()
        except Exception as error:
            self._pump.count_failed_send()
            self._log(f"a closing send() raised {type(error).__name__}: {error}")

    def _poll(self, stream: Stream, records_expired: bool) -> None:
        try:
            cancelled = stream.path.is_cancelled()
        except Exception as error:
            self._log(f"{stream.request_id}: is_cancelled() raised {type(error).__name__}: {error}")
            cancelled = False
        if cancelled or records_expired:
            self._post(PollDone(stream.request_id, cancelled, records_expired))
