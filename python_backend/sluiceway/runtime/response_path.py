"""The way back to one client: the only code that touches Triton's response sender.

Its methods run in the pump, under one key per RPC, so never two at once for one request. After FINAL,
is_cancelled() reads freed memory in tritonserver and kills it.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from sluiceway.core.commands import Frame
from sluiceway.runtime.codec import Outputs, tensors
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.inputs import Array


class Responder(Protocol):
    """Triton's side of one request; raises whatever Triton raises."""

    def send(self, outputs: list[tuple[str, Array]], *, final: bool) -> None: ...

    def send_error(self, message: str, code: ErrorCode) -> None:
        """An error response with FINAL."""

    def close(self) -> None:
        """FINAL without a response."""

    def is_cancelled(self) -> bool: ...


class ResponsePath:
    """FINAL at most once, nothing after it.

    prefix: before the first text: the prompt, if it was asked for. stream_id: told with the first frame and
    with the last, for a client that may come back; "" for others.
    """

    def __init__(self, responder: Responder, outputs: Outputs, prefix: str = "", stream_id: str = "") -> None:
        self._responder: Responder | None = responder
        self._outputs = outputs
        self._prefix = prefix
        self._stream_id = stream_id
        self._is_first = True

    def send(self, frame: Frame) -> None:
        """Raise what Triton raises; the request is then still open, and close() is due."""
        responder = self._open()
        final = frame.finish_reason is not None
        stream_id = self._stream_id if self._is_first or final else ""
        outputs = tensors(frame, self._outputs, self._prefix if frame.sequence == 0 else "", stream_id)
        responder.send(outputs, final=final)
        self._is_first = False
        if final:
            self._responder = None

    def send_levels(self, levels: str) -> None:
        """The whole answer to a control request: a JSON object."""
        responder, self._responder = self._open(), None
        responder.send([("levels", np.array([levels.encode()], dtype=np.object_))], final=True)

    def close(self) -> None:
        """Idempotent: a send with FINAL may have succeeded before a close was decided."""
        if self._responder is not None:
            responder, self._responder = self._responder, None
            responder.close()

    def refuse(self, message: str, code: ErrorCode) -> None:
        responder, self._responder = self._open(), None
        responder.send_error(message, code)

    def is_cancelled(self) -> bool:
        """False once FINAL is out, without asking."""
        return self._responder is not None and self._responder.is_cancelled()

    def _open(self) -> Any:
        if self._responder is None:
            raise RuntimeError("a response after FINAL")
        return self._responder
