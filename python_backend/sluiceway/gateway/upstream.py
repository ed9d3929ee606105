"""Triton, for all requests of one gateway process: connections, places, and which headers travel on."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluiceway.client.frames import GenerateRequest, GenerationError
from sluiceway.client.rpc import AsyncRpc
from sluiceway.gateway.settings import GatewaySettings
from sluiceway.gateway.upstream_rpc import SHUTDOWN, Rpc, UpstreamRpc

_FORWARDED = ("traceparent", "tracestate")
_READY_TIMEOUT_S = 1.0
_CHANNEL_OPTIONS = [
    # Each channel gets its connection; else all channels to one address share one.
    ("grpc.use_local_subchannel_pool", 1),
    # What a stream may send before it is read. The connection's window grows with its streams', so one that is not
    # read holds no other up; without the probe it stays small.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 16 * 1024),
    # Triton answers pings that come more often than every 300 s without data with GOAWAY.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

OpenRpc = Callable[[grpc.aio.Channel, GenerateRequest, str, Sequence[tuple[str, str]]], Rpc]


class Upstream:
    """Opens generations at Triton. Made and used on one event loop.

    open_rpc: what makes an RPC; tests give their own.
    """

    def __init__(self, settings: GatewaySettings, *, open_rpc: OpenRpc | None = None) -> None:
        self.settings = settings
        self.peak_streams = 0
        self._open_rpc = self._async_rpc if open_rpc is None else open_rpc
        self._channels = [
            grpc.aio.insecure_channel(settings.triton, options=_CHANNEL_OPTIONS)
            for _ in range(settings.triton_channels)
        ]
        self._open: dict[UpstreamRpc, int] = {}
        self._load = [0] * settings.triton_channels
        self._is_shutting_down = False
        self._all_closed = asyncio.Event()

    @property
    def open_streams(self) -> int:
        return len(self._open)

    def open(self, request: GenerateRequest, headers: Mapping[str, str]) -> UpstreamRpc:
        """One generation, on the channel with the fewest. The caller closes it (``aclose``) on every path.

        headers: of the client's HTTP request, names in lower case. Raises GenerationError "unavailable" if the
        process has no place, "shutdown" if it goes away.
        """
        if self._is_shutting_down:
            raise GenerationError("shutdown", SHUTDOWN, retry_after_s=1.0)
        limit = self.settings.max_streams
        if len(self._open) >= limit:
            text = f"max_streams: {limit} streams are open in this gateway; try again in 1 s"
            raise GenerationError("unavailable", text, retry_after_s=1.0)
        tells_bytes = self.settings.delivery == "envoy"
        index = min(range(len(self._load)), key=self._load.__getitem__)
        metadata = [(name, headers[name]) for name in _FORWARDED if headers.get(name)]
        rpc = self._open_rpc(self._channels[index], request, _request_id(headers, is_envoys=tells_bytes), metadata)
        opened = UpstreamRpc(rpc, self._release, tells_bytes=tells_bytes)
        self._open[opened] = index
        self._load[index] += 1
        self.peak_streams = max(self.peak_streams, len(self._open))
        return opened

    async def is_ready(self, model: str | None = None) -> bool:
        """Triton answers and serves the model (None: ours)."""
        request = service_pb2.ModelReadyRequest(name=model or self.settings.triton_model)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channels[0])
        try:
            return bool((await stub.ModelReady(request, timeout=_READY_TIMEOUT_S)).ready)
        except grpc.aio.AioRpcError:
            return False

    async def shut_down(self, within_s: float) -> None:
        """Take nothing new; streams still open after ``within_s`` end with GenerationError "shutdown"."""
        self._is_shutting_down = True
        if self._open:
            self._all_closed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._all_closed.wait()
        for rpc in list(self._open):
            rpc.shut_down()

    async def aclose(self) -> None:
        """Close the connections; RPCs that are still open end."""
        for channel in self._channels:
            await channel.close()

    def _release(self, rpc: UpstreamRpc) -> None:
        index = self._open.pop(rpc, None)
        if index is not None:
            self._load[index] -= 1
            if not self._open:
                self._all_closed.set()

    def _async_rpc(
        self,
        channel: grpc.aio.Channel,
        request: GenerateRequest,
        request_id: str,
        metadata: Sequence[tuple[str, str]],
    ) -> Rpc:
        return AsyncRpc(channel, request, request_id=request_id, metadata=metadata, timeout_s=self.settings.timeout_s)


def _request_id(headers: Mapping[str, str], *, is_envoys: bool) -> str:
    """Envoy's, which joins its records; where no Envoy of ours is in front, a client's would be another's key."""
    if is_envoys:
        return headers.get("x-request-id", "")
    return secrets.token_hex(16)
