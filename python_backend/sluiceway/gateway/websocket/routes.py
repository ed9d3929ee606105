"""``/v1/stream``: a WebSocket that carries one answer."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from sluiceway.client.frames import GenerateRequest, GenerationError
from sluiceway.gateway import served_model
from sluiceway.gateway.clock import RealClock
from sluiceway.gateway.disconnect import ClientGone
from sluiceway.gateway.errors import Problem, openai_body, problem_of, respond
from sluiceway.gateway.openai.refusals import named
from sluiceway.gateway.settings import GatewaySettings
from sluiceway.gateway.upstream import Upstream
from sluiceway.gateway.websocket import messages
from sluiceway.gateway.websocket.channel import Channel
from sluiceway.gateway.websocket.session import Session


async def stream(websocket: WebSocket) -> None:
    """The first message opens the answer (websocket/messages.py); after its last frame the connection is closed."""
    settings: GatewaySettings = websocket.app.state.settings
    if not _is_allowed(websocket, settings.websocket.allowed_origins):
        text = "origin: pages of other hosts may not open streams here; see websocket.allowed_origins"
        refusal = respond(Problem(403, text, param="origin", code="origin_not_allowed"), openai_body)
        await websocket.send_denial_response(refusal)
        return
    await websocket.accept()
    channel = Channel(websocket, RealClock())
    problem: Problem | None = None
    try:
        opening = await _opening(websocket, settings.request_timeout_s)
        is_complete = await _run(websocket, channel, opening)
    except ClientGone:
        raise
    except Exception as error:
        problem, is_complete = problem_of(error), True
    if not is_complete:
        raise ClientGone
    await channel.close(problem)


async def upgrade_required(_request: Request) -> Response:
    text = "/v1/stream speaks WebSocket; over HTTP there is /v1/chat/completions with stream true"
    raise Problem(426, text, code="upgrade_required", headers={"upgrade": "websocket", "connection": "upgrade"})


async def _opening(websocket: WebSocket, within_s: float) -> messages.Generate | messages.ResumeStream:
    try:
        async with asyncio.timeout(within_s):
            message = await websocket.receive()
    except TimeoutError:
        text = f"the first message did not come within {within_s:g} s"
        raise Problem(408, text, code="request_timeout") from None
    if message["type"] == "websocket.disconnect":
        raise ClientGone
    if message.get("text") is None:
        raise Problem(400, "messages must be text, not binary", code="invalid_body")
    return messages.opening(message["text"])


async def _run(websocket: WebSocket, channel: Channel, opening: messages.Generate | messages.ResumeStream) -> bool:
    settings: GatewaySettings = websocket.app.state.settings
    upstream: Upstream = websocket.app.state.upstream
    prompt_tokens: int | None = None
    if isinstance(opening, messages.Generate):
        generation, prompt_tokens = await _new(websocket, opening)
    else:
        generation = GenerateRequest(
            resume_stream_id=opening.stream_id,
            resume_frame=opening.frame,
            resumable=True,
            model=settings.triton_model,
        )
    rpc = upstream.open(generation, websocket.headers)
    is_complete = False
    try:
        session = Session(channel, rpc, opening, prompt_tokens)
        is_complete = await session.run(websocket.receive, RealClock(), settings.heartbeat_s)
    except GenerationError as error:
        raise named(error, "chat" if _is_chat(opening) else "text") from None
    finally:
        if not is_complete:
            rpc.abort()
        await rpc.aclose()
    return is_complete


async def _new(websocket: WebSocket, opening: messages.Generate) -> tuple[GenerateRequest, int]:
    settings: GatewaySettings = websocket.app.state.settings
    if opening.model:
        served_model.check_name(websocket, opening.model)
    prompt = opening.prompt or await served_model.chat_prompt(websocket, opening.template_messages(), [])
    prompt_tokens = await served_model.count_tokens(websocket, prompt)
    max_tokens = opening.max_completion_tokens or opening.max_tokens or settings.max_tokens_default
    generation = GenerateRequest(
        prompt=prompt,
        sampling=opening.sampling(max_tokens),
        resumable=opening.resumable,
        model=settings.triton_model,
    )
    return generation, prompt_tokens


def _is_chat(opening: messages.Generate | messages.ResumeStream) -> bool:
    return isinstance(opening, messages.Generate) and opening.messages is not None


def _is_allowed(websocket: WebSocket, allowed: tuple[str, ...]) -> bool:
    """Browsers let every page open a WebSocket anywhere and say which page it was; other programs say nothing."""
    origin = websocket.headers.get("origin")
    if origin is None or origin in allowed:
        return True
    return urlsplit(origin).netloc.lower() == websocket.headers.get("host", "").lower()


routes: list[BaseRoute] = [
    WebSocketRoute("/v1/stream", stream),
    Route("/v1/stream", upgrade_required),
]
