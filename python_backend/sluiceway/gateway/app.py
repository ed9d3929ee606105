"""The gateway as an ASGI application."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from sluiceway.client.frames import GenerationError
from sluiceway.gateway import triton_routes
from sluiceway.gateway.edge import Edge
from sluiceway.gateway.errors import NO_STORE, Problem, body_for, problem_of, respond
from sluiceway.gateway.metrics import Metrics
from sluiceway.gateway.openai import routes as openai_routes
from sluiceway.gateway.page import routes as page_routes
from sluiceway.gateway.settings import GatewaySettings
from sluiceway.gateway.tokenizer import ChatTokenizer
from sluiceway.gateway.upstream import Upstream
from sluiceway.gateway.websocket import routes as websocket_routes


def create_app(settings: GatewaySettings, upstream: Upstream, tokenizer: ChatTokenizer | None = None) -> Starlette:
    """Handlers find ``settings``, ``upstream``, ``tokenizer`` and ``metrics`` in ``request.app.state``.

    tokenizer: what turns messages into a prompt; None: routes that need one refuse.
    """
    metrics = Metrics()
    metrics.open_streams.set_function(lambda: upstream.open_streams)
    app = Starlette(
        routes=[
            *_ROUTES,
            *page_routes.routes,
            *openai_routes.routes,
            *triton_routes.routes,
            *websocket_routes.routes,
        ],
        middleware=[Middleware(Edge, metrics=metrics)],
        exception_handlers={Problem: _on_problem, GenerationError: _on_problem, HTTPException: _on_http_exception},
    )
    app.router.redirect_slashes = False
    app.state.settings = settings
    app.state.upstream = upstream
    app.state.tokenizer = tokenizer
    app.state.metrics = metrics
    return app


async def healthz(_request: Request) -> Response:
    """Alive, whatever Triton does."""
    return PlainTextResponse("ok\n", headers=NO_STORE)


async def readyz(request: Request) -> Response:
    """It takes new streams, and Triton serves the model."""
    upstream: Upstream = request.app.state.upstream
    if await upstream.is_ready():
        return PlainTextResponse("ready\n", headers=NO_STORE)
    raise Problem(503, "unavailable: Triton does not serve the model", code="unavailable")


async def metrics(request: Request) -> Response:
    exposition = request.app.state.metrics.exposition()
    return Response(exposition, media_type="text/plain; version=0.0.4", headers=NO_STORE)


_ROUTES: Sequence[BaseRoute] = (
    Route("/healthz", healthz),
    Route("/readyz", readyz),
    Route("/metrics", metrics),
)


async def _on_problem(request: Request, error: Exception) -> Response:
    return respond(problem_of(error), body_for(request.url.path))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Of Starlette's router: no such path, or no such method there."""
    assert isinstance(error, HTTPException)
    codes = {404: "unknown_url", 405: "method_not_allowed"}
    texts = {404: "no such path", 405: f"{request.method} is not allowed here"}
    status = error.status_code
    problem = Problem(status, texts.get(status, error.detail), code=codes.get(status), headers=error.headers)
    return respond(problem, body_for(request.url.path))
