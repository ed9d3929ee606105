"""Triton's HTTP API, as far as generation needs it: generate, generate_stream, health."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sluiceway.gateway import triton_request
from sluiceway.gateway.bodies import read_object
from sluiceway.gateway.disconnect import unless_gone
from sluiceway.gateway.errors import NO_STORE, Problem, encode_json, triton_body
from sluiceway.gateway.events import Event, EventStream
from sluiceway.gateway.settings import GatewaySettings
from sluiceway.gateway.triton_request import TritonRequest
from sluiceway.gateway.upstream import Upstream
from sluiceway.gateway.upstream_rpc import UpstreamRpc
from sluiceway.gateway.whole_answer import collect


async def generate(request: Request) -> Response:
    """One JSON object with the whole answer."""
    model = _model(request)
    asked = triton_request.parse(await read_object(request, any_type=True), model)
    if asked.streams:
        raise Problem(400, "stream: must be false (or left out) for generate; use generate_stream", param="stream")
    upstream: Upstream = request.app.state.upstream
    settings: GatewaySettings = request.app.state.settings
    rpc = upstream.open(asked.generation, request.headers)
    frames = await unless_gone(request.receive, collect(rpc, settings.max_whole_answer_bytes), rpc.abort)
    return Response(encode_json(triton_request.answer(asked, frames)), media_type="application/json", headers=NO_STORE)


async def generate_stream(request: Request) -> Response:
    """One event with one JSON object for each frame, or, with ``stream`` false, one for the whole answer."""
    model = _model(request)
    asked = triton_request.parse(await read_object(request, any_type=True), model)
    upstream: Upstream = request.app.state.upstream
    settings: GatewaySettings = request.app.state.settings
    rpc = upstream.open(asked.generation, request.headers)
    events = _frame_events(asked, rpc) if asked.streams else _whole_event(asked, rpc, settings.max_whole_answer_bytes)
    return EventStream(
        events,
        heartbeat_s=settings.heartbeat_s,
        on_written=rpc.written,
        on_disconnect=rpc.abort,
        error_body=triton_body,
    )


async def live(_request: Request) -> Response:
    return Response(headers=NO_STORE)


async def ready(request: Request) -> Response:
    """Of the server, or of the model that the path names."""
    if "model" in request.path_params:
        _model(request)
    upstream: Upstream = request.app.state.upstream
    return Response(status_code=200 if await upstream.is_ready() else 503, headers=NO_STORE)


async def _frame_events(asked: TritonRequest, rpc: UpstreamRpc) -> AsyncIterator[Event]:
    try:
        async for frame in rpc:
            data = encode_json(triton_request.answer(asked, [frame])).decode()
            yield Event(data=data, frame=frame.sequence)
    finally:
        await rpc.aclose()


async def _whole_event(asked: TritonRequest, rpc: UpstreamRpc, max_bytes: int) -> AsyncIterator[Event]:
    frames = await collect(rpc, max_bytes)
    yield Event(data=encode_json(triton_request.answer(asked, frames)).decode())


def _model(request: Request) -> str:
    settings: GatewaySettings = request.app.state.settings
    model, version = request.path_params["model"], request.path_params.get("version", triton_request.VERSION)
    if model not in (settings.triton_model, settings.served_model_name) or version != triton_request.VERSION:
        raise Problem(404, "Request for unknown model: no model has that name and version", code="model_not_found")
    return settings.triton_model


_MODEL = "/v2/models/{model}"
_MODELS = (_MODEL, _MODEL + "/versions/{version}")
routes: list[BaseRoute] = [
    Route("/v2/health/live", live),
    Route("/v2/health/ready", ready),
    *(Route(f"{path}/ready", ready) for path in _MODELS),
    *(Route(f"{path}/generate", generate, methods=["POST"]) for path in _MODELS),
    *(Route(f"{path}/generate_stream", generate_stream, methods=["POST"]) for path in _MODELS),
]
