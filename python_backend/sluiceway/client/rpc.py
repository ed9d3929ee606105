"""One generation on one RPC: frames come in, acks, cancel and questions for levels go out."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluiceway.client import errors, wire
from sluiceway.client.ack_batch import Ack, AckBatch
from sluiceway.client.frames import Frame, GenerateRequest, GenerationError

_GOODBYE_S = 1.0
_LEVELS_TIMEOUT_S = 5.0


class AsyncRpc:
    """Opens a stream with acks at once; made and used on one event loop, iterated by one reader.

    Frames are taken from the wire as they come, so that answers to ``levels`` do not stand behind frames that nobody
    reads. The backend sends no more than its window (16 KiB) beyond what ``ack`` names, which bounds what waits here.

    channel: insecure or secure; request_id: names the stream on this RPC, and Envoy's record of the RPC where no
    Envoy gives it another. metadata: further headers. timeout_s: of the whole RPC (``deadline_exceeded``).
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        request: GenerateRequest,
        *,
        request_id: str,
        metadata: Sequence[tuple[str, str]] = (),
        timeout_s: float | None = None,
    ) -> None:
        self._model = request.model
        self._request_id = request_id
        self._loop = asyncio.get_running_loop()
        headers = (("x-request-id", request_id), *metadata) if request_id else tuple(metadata)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self._call: grpc.aio.StreamStreamCall = stub.ModelStreamInfer(metadata=headers, timeout=timeout_s)
        self._frames: asyncio.Queue[Frame | GenerationError | None] = asyncio.Queue()
        self._unacked: deque[Frame] = deque()
        self._batch = AckBatch()
        self._outgoing: deque[service_pb2.ModelInferRequest] = deque([wire.generate(request, request_id)])
        self._levels: deque[asyncio.Future[dict[str, object]]] = deque()
        self._wake = asyncio.Event()
        self._has_ended = False
        self._reader = self._loop.create_task(self._read())
        self._writer = self._loop.create_task(self._write())

    @property
    def unread_frames(self) -> int:
        """Frames that are here and were not iterated."""
        return self._frames.qsize()

    async def __aiter__(self) -> AsyncIterator[Frame]:
        """Ends after the frame with a finish reason. Raises GenerationError."""
        while (item := await self._frames.get()) is not None:
            if isinstance(item, GenerationError):
                raise item
            self._unacked.append(item)
            yield item
            if item.finish_reason is not None:
                return
        raise GenerationError("cancelled", "the generation was given up by its own client")

    def ack(self, sequence: int, body_bytes: int | None = None) -> None:
        """All frames up to and with ``sequence`` are read, or will be once ``body_bytes`` of a body are out."""
        frames = content_bytes = 0
        while self._unacked and self._unacked[0].sequence <= sequence:
            frames += 1
            content_bytes += len(self._unacked.popleft().text.encode())
        if frames and not self._has_ended:
            self._batch.add(Ack(sequence, body_bytes), frames, content_bytes, self._loop.time())
            self._wake.set()

    async def levels(self) -> dict[str, object]:
        """How far the backend, Envoy and this client are with the stream (docs/flow-control.md); {} once it ended.

        Raises GenerationError "deadline_exceeded" if no answer comes within 5 s.
        """
        if self._has_ended:
            return {}
        answer: asyncio.Future[dict[str, object]] = self._loop.create_future()
        self._levels.append(answer)
        self._say("levels")
        try:
            async with asyncio.timeout(_LEVELS_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise GenerationError("deadline_exceeded", f"levels: no answer within {_LEVELS_TIMEOUT_S:g} s") from None

    async def cancel(self) -> None:
        """Ask for the end; frames that are under way and the one with finish reason "cancelled" still come."""
        if not self._has_ended:
            self._say("cancel")

    def abort(self) -> None:
        """End the RPC now; what iterates it gets GenerationError "cancelled"."""
        self._call.cancel()
        self._frames.put_nowait(None)
        self._finish()

    async def aclose(self) -> None:
        """End the RPC, politely if the answer is complete. Idempotent; leaves no task behind."""
        if self._has_ended and not self._reader.done():
            await asyncio.wait([self._reader], timeout=_GOODBYE_S)
        self._finish()
        self._call.cancel()
        for task in (self._reader, self._writer):
            task.cancel()
        await asyncio.gather(self._reader, self._writer, return_exceptions=True)

    def _say(self, control: str) -> None:
        self._outgoing.append(wire.control(self._model, self._request_id, control))
        self._wake.set()

    async def _read(self) -> None:
        try:
            while not self._has_ended:
                response = await self._call.read()
                if response is grpc.aio.EOF:
                    await self._raise_status()
                self._take(response)
            await self._writer  # not cancelled: a write that is cancelled takes the RPC with it
            await self._call.done_writing()
            while await self._call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            self._fail(errors.of_rpc(error))
        except asyncio.InvalidStateError:
            self._fail(GenerationError("cancelled", "the RPC ended"))
        except errors.MalformedAnswer as error:
            self._call.cancel()
            self._fail(GenerationError("internal", str(error)))
        finally:
            self._finish()

    async def _raise_status(self) -> None:
        """The RPC ended before the answer did."""
        code = await self._call.code()
        if code is grpc.StatusCode.OK:
            details = "the server ended the RPC before the answer"
            code = grpc.StatusCode.UNAVAILABLE
        else:
            details = await self._call.details() or code.name
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)

    def _take(self, response: service_pb2.ModelStreamInferResponse) -> None:
        if response.error_message:
            if not errors.is_about_control(response.error_message):
                self._fail(errors.of_text(response.error_message))
            return
        answer = wire.parse(response.infer_response)
        if isinstance(answer, Frame):
            self._frames.put_nowait(answer)
            if answer.finish_reason is not None:
                self._finish()
        elif answer is not None and self._levels:
            future = self._levels.popleft()
            if not future.done():
                future.set_result(answer)

    def _fail(self, error: GenerationError) -> None:
        if not self._has_ended:
            self._frames.put_nowait(error)
        self._finish()

    def _finish(self) -> None:
        """Nothing more is expected; who waits for levels gets none."""
        self._has_ended = True
        for future in self._levels:
            if not future.done():
                future.set_result({})
        self._levels.clear()
        self._wake.set()

    async def _write(self) -> None:
        """One write at a time. A failure is the reader's to report: it sees the same status."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while not self._has_ended:
                while self._outgoing:
                    await self._call.write(self._outgoing.popleft())
                if ack := self._batch.take(self._loop.time()):
                    await self._call.write(wire.ack(self._model, self._request_id, ack))
                if not self._outgoing:
                    await self._sleep()

    async def _sleep(self) -> None:
        due_at = self._batch.due_at
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due_at):
                await self._wake.wait()
        self._wake.clear()
