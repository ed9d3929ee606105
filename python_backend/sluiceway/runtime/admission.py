"""Who may come in: a request becomes an open stream, or its client is told why not."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.core.registry import AdmissionRefused, Registry
from sluiceway.core.spool import SpoolPosition
from sluiceway.runtime.clients import Clients
from sluiceway.runtime.config import Config
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.messages import Admit
from sluiceway.runtime.outbox import Outbox
from sluiceway.runtime.response_path import ResponsePath
from sluiceway.runtime.source import TokenSource
from sluiceway.runtime.stream import Stream, open_stream

_START = SpoolPosition(sequence=0, first_token_index=0)


class Admission:
    """overhead_bytes(request): what a frame of that request costs on the wire beside its text.

    is_draining, is_engine_dead: nobody is let in any more. refused: for any reason but the registry's.
    """

    def __init__(
        self,
        config: Config,
        registry: Registry,
        clients: Clients,
        outbox: Outbox,
        overhead_bytes: Callable[[Admit], int],
    ) -> None:
        self._config = config
        self._registry = registry
        self._clients = clients
        self._outbox = outbox
        self._overhead_bytes = overhead_bytes
        self._count = 0
        self.refused = 0
        self.is_draining = self.is_engine_dead = False

    @property
    def next_id(self) -> str:
        """The request id that the next open() will give."""
        return f"r{self._count + 1}"

    def has_room(self, message: Admit) -> bool:
        """Whether a stream may open now; if not, the client is told."""
        request = message.request
        if self.is_draining or self.is_engine_dead:
            why = "the engine failed" if self.is_engine_dead else "the server is shutting down"
            self.refuse(request.rpc_id, message.path, f"{why}; try again elsewhere", ErrorCode.UNAVAILABLE)
            return False
        try:
            self._registry.check_room()
        except AdmissionRefused as refusal:  # the registry counts these
            self._outbox.refuse(request.rpc_id, message.path, f"admission.{refusal}", ErrorCode.UNAVAILABLE)
            return False
        return True

    def open(self, message: Admit, source: TokenSource, now: float, position: SpoolPosition = _START) -> Stream:
        """Call only if has_room(). position: where the stream of a client that came back goes on."""
        request_id = self.next_id
        self._count += 1
        stream = open_stream(
            request_id,
            message.request,
            message.path,
            self._clients.join(message.request.rpc_id, request_id, now, acks=message.request.acks),
            source,
            self._config.limits(self._overhead_bytes(message)),
            self._config.admission.max_whole_answer_bytes,
            now,
            first_sequence=position.sequence,
            first_token_index=position.first_token_index,
        )
        self._registry.admit(request_id, stream.sender)
        return stream

    def refuse(self, rpc_id: str | None, path: ResponsePath, text: str, code: ErrorCode) -> None:
        """Whatever the reason, the client is told, and it is counted."""
        self.refused += 1
        self._outbox.refuse(rpc_id, path, text, code)
