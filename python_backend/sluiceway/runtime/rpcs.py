"""The client-facing RPCs: one ledger each, known from the first record or the first request on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluiceway.core.events import Progress
from sluiceway.core.limits import Size
from sluiceway.core.record import Record
from sluiceway.core.window import DeliveryWindow

MAX_IDLE_RPCS = 4096


@dataclass(slots=True)
class Rpc:
    """``ended``: Envoy's word for how it ended, None while it has not."""

    rpc_id: str
    window: DeliveryWindow
    requests: dict[str, None] = field(default_factory=dict)  # a set that keeps their order
    ended: str | None = None


class RpcTable:
    """An RPC with open requests stays; of the others, the ``max_idle`` last seen are kept.

    Those without requests are: RPCs whose request has not reached execute() yet (their early records
    and ends must not be lost), those between two requests, and calls that never were for us (health
    checks pass Envoy too). Nothing tells these apart, so a number bounds them.
    """

    def __init__(self, limit: Size, max_idle: int = MAX_IDLE_RPCS) -> None:
        self._limit = limit
        self._max_idle = max_idle
        self._busy: dict[str, Rpc] = {}
        self._idle: OrderedDict[str, Rpc] = OrderedDict()

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)

    def join(self, rpc_id: str | None, request_id: str, *, acks: bool = False) -> Rpc:
        """The RPC of a request that opens; without an id, one of its own of which no record will tell.

        acks: its client acknowledges frames.
        """
        if rpc_id is None:
            rpc = Rpc(f"unknown:{request_id}", DeliveryWindow(self._limit))
        else:
            rpc = self._busy.get(rpc_id) or self._idle.pop(rpc_id, None) or Rpc(rpc_id, DeliveryWindow(self._limit))
        self._busy[rpc.rpc_id] = rpc
        rpc.window.open(request_id, acks=acks)
        rpc.requests[request_id] = None
        return rpc

    def find(self, rpc_id: str) -> Rpc | None:
        """The RPC, if it has open requests."""
        return self._busy.get(rpc_id)

    def leave(self, rpc: Rpc, request_id: str) -> None:
        rpc.window.close(request_id)
        rpc.requests.pop(request_id, None)
        if not rpc.requests:
            del self._busy[rpc.rpc_id]
            if rpc.window.has_signal:  # otherwise there is nothing to remember
                self._keep_idle(rpc)

    def observe(self, record: Record) -> tuple[Rpc, Mapping[str, Progress]]:
        """Take a record in; answer the RPC and the progress of its open requests."""
        rpc = self._busy.get(record.rpc_id)
        if rpc is None:
            rpc = self._idle.pop(record.rpc_id, None) or Rpc(record.rpc_id, DeliveryWindow(self._limit))
            if not record.expired:
                self._keep_idle(rpc)
        if record.ended:
            rpc.ended = record.detail or "ended"
        return rpc, rpc.window.observe(record)

    def _keep_idle(self, rpc: Rpc) -> None:
        self._idle[rpc.rpc_id] = rpc
        if len(self._idle) > self._max_idle:
            self._idle.popitem(last=False)
