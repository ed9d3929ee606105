"""One open answer on one WebSocket: frames go out, what the client says about them comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Message

from sluiceway.client.frames import Frame, GenerationError
from sluiceway.gateway.clock import Clock
from sluiceway.gateway.disconnect import end
from sluiceway.gateway.errors import Problem
from sluiceway.gateway.heartbeat import beat
from sluiceway.gateway.upstream_rpc import UpstreamRpc
from sluiceway.gateway.websocket import messages
from sluiceway.gateway.websocket.channel import Channel, error_message

_MAX_REPLIES = 16
_FRAMES_AHEAD = "ack: frame {} was not sent yet"
_FRAMES_BACK = "ack: goes back, from frame {} to frame {}"


class Session:
    """prompt_tokens: for the usage in the last frame; None: unknown, of an answer that is taken up again."""

    def __init__(
        self, channel: Channel, rpc: UpstreamRpc, options: messages.Options, prompt_tokens: int | None = None
    ) -> None:
        self._channel = channel
        self._rpc = rpc
        self._options = options
        self._prompt_tokens = prompt_tokens
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._sent_frame = self._acked_frame = -1
        self._replies: asyncio.Queue[Callable[[], Awaitable[dict[str, object]]]] = asyncio.Queue(_MAX_REPLIES)

    async def run(self, receive: Callable[[], Awaitable[Message]], clock: Clock, heartbeat_s: float) -> bool:
        """Until the answer is complete; False: the client left. Raises GenerationError, Problem, ClientGone."""
        writing = asyncio.create_task(self._write())
        listening = asyncio.create_task(self._listen(receive))
        replying = asyncio.create_task(self._reply())
        beating = asyncio.create_task(beat(self._channel, clock, heartbeat_s, self._heartbeat))
        tasks = (writing, listening, replying, beating)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {writing}:
                task.result()
            if writing in done:
                writing.result()
            return writing in done
        finally:
            await end(*tasks)

    async def _write(self) -> None:
        async for frame in self._rpc:
            await self._may_write.wait()
            # Before the write: the client may have it, and acknowledge it, while the write still waits.
            self._sent_frame = frame.sequence
            body_bytes = await self._channel.say(self._frame_message(frame))
            if not self._options.acks:
                self._rpc.written(frame.sequence, body_bytes)

    async def _listen(self, receive: Callable[[], Awaitable[Message]]) -> None:
        """Returns when the client left. Never waits for a write, behind which a disconnect would not be seen."""
        while (message := await receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            if text is None:
                raise Problem(400, "messages must be text, not binary", code="invalid_body")
            try:
                await self._take(messages.control(text))
            except Problem as problem:
                self._queue(_reply_of(error_message(problem)))

    async def _take(self, control: messages.Ack | messages.Control) -> None:
        if isinstance(control, messages.Ack):
            self._ack(control.frame)
            return
        match control.type:
            case "pause":
                self._may_write.clear()
            case "resume":
                self._may_write.set()
            case "cancel":
                self._may_write.set()
                await self._rpc.cancel()
            case "levels":
                self._queue(self._levels)

    def _ack(self, frame: int) -> None:
        """Raises Problem 400, which changes nothing."""
        if not self._options.acks:
            raise Problem(400, "ack: this answer was opened without acks", param="type", code="invalid_value")
        if frame > self._sent_frame:
            raise Problem(400, _FRAMES_AHEAD.format(frame), param="frame", code="frame_unknown")
        if frame < self._acked_frame:
            raise Problem(400, _FRAMES_BACK.format(self._acked_frame, frame), param="frame", code="invalid_value")
        self._acked_frame = frame
        self._rpc.ack(frame)

    def _queue(self, reply: Callable[[], Awaitable[dict[str, object]]]) -> None:
        try:
            self._replies.put_nowait(reply)
        except asyncio.QueueFull:
            text = f"more than {_MAX_REPLIES} messages wait for their answers; read before you ask again"
            raise Problem(400, text, code="too_many_messages") from None

    async def _reply(self) -> None:
        while True:
            reply = await self._replies.get()
            await self._channel.say(await reply())

    async def _levels(self) -> dict[str, object]:
        try:
            return {"type": "levels", "levels": await self._rpc.levels()}
        except GenerationError:
            return {"type": "levels", "levels": {}}

    async def _heartbeat(self) -> None:
        await self._channel.say({"type": "heartbeat"})

    def _frame_message(self, frame: Frame) -> dict[str, object]:
        message: dict[str, object] = {"type": "frame", "frame": frame.sequence, "text": frame.text}
        if self._options.return_token_ids:
            message["token_ids"] = frame.token_ids
        message["finish_reason"] = frame.finish_reason
        if frame.stream_id:
            message["stream_id"] = frame.stream_id
        if frame.finish_reason is not None:
            message["usage"] = self._usage(frame)
        return message

    def _usage(self, frame: Frame) -> dict[str, int]:
        completion_tokens = frame.first_token_index + len(frame.token_ids)
        if self._prompt_tokens is None:
            return {"completion_tokens": completion_tokens}
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self._prompt_tokens + completion_tokens,
        }


def _reply_of(message: dict[str, object]) -> Callable[[], Awaitable[dict[str, object]]]:
    async def reply() -> dict[str, object]:
        return message

    return reply
