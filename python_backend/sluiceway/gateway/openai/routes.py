"""OpenAI's API over HTTP."""

from __future__ import annotations

import secrets
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sluiceway.client.frames import GenerateRequest, GenerationError
from sluiceway.gateway import served_model
from sluiceway.gateway.bodies import read_object
from sluiceway.gateway.disconnect import unless_gone
from sluiceway.gateway.errors import NO_STORE, Problem, encode_json
from sluiceway.gateway.events import EventStream
from sluiceway.gateway.openai import event_id, fields, streamed
from sluiceway.gateway.openai.chat_request import ChatRequest
from sluiceway.gateway.openai.completion_request import CompletionRequest
from sluiceway.gateway.openai.objects import Answer, model_object
from sluiceway.gateway.openai.refusals import named, naming
from sluiceway.gateway.openai.tool_calls import ToolCallParser
from sluiceway.gateway.settings import GatewaySettings
from sluiceway.gateway.upstream import Upstream
from sluiceway.gateway.upstream_rpc import UpstreamRpc
from sluiceway.gateway.whole_answer import collect

_COMPLETION_MAX_TOKENS = 16  # OpenAI's default for completions
_LAST_EVENT_ID = "last-event-id"
_STARTED = int(time.time())


async def chat_completions(request: Request) -> Response:
    body = await read_object(request)
    if _LAST_EVENT_ID in request.headers:
        return _resume(request, request.headers[_LAST_EVENT_ID])
    asked = fields.parse(ChatRequest, body)
    served_model.check_name(request, asked.model)
    tools, messages = asked.wanted_tools(), asked.template_messages()
    prompt = await served_model.chat_prompt(request, messages, tools)
    settings: GatewaySettings = request.app.state.settings
    max_tokens = asked.max_completion_tokens or asked.max_tokens or settings.max_tokens_default
    return await _answer(request, asked, "chat", prompt, max_tokens, ToolCallParser() if tools else None)


async def completions(request: Request) -> Response:
    body = await read_object(request)
    if _LAST_EVENT_ID in request.headers:
        return _resume(request, request.headers[_LAST_EVENT_ID])
    asked = fields.parse(CompletionRequest, body)
    served_model.check_name(request, asked.model)
    max_tokens = asked.max_tokens or _COMPLETION_MAX_TOKENS
    return await _answer(request, asked, "text", asked.text, max_tokens, None)


async def stream(request: Request) -> Response:
    """Take a resumable answer up again; for EventSource, which cannot send headers, the id is a parameter."""
    came_with = request.headers.get(_LAST_EVENT_ID) or request.query_params.get("last_event_id") or ""
    if came_with and event_id.parse(came_with).stream_id != request.path_params["stream_id"]:
        raise Problem(400, "Last-Event-ID: of another stream", param="Last-Event-ID", code="invalid_value")
    return _resume(request, came_with)


async def models(request: Request) -> Response:
    settings: GatewaySettings = request.app.state.settings
    return _json({"object": "list", "data": [model_object(settings.served_model_name, _STARTED)]})


async def model(request: Request) -> Response:
    served_model.check_name(request, request.path_params["model"])
    settings: GatewaySettings = request.app.state.settings
    return _json(model_object(settings.served_model_name, _STARTED))


async def _answer(
    request: Request, asked: fields.Fields, kind: str, prompt: str, max_tokens: int, parser: ToolCallParser | None
) -> Response:
    settings: GatewaySettings = request.app.state.settings
    upstream: Upstream = request.app.state.upstream
    prompt_tokens = await served_model.count_tokens(request, prompt)
    answer = Answer(
        kind,
        secrets.token_hex(16),
        int(time.time()),
        settings.served_model_name,
        prompt_tokens,
        asked.return_token_ids,
    )
    generation = GenerateRequest(
        prompt=prompt, sampling=asked.sampling(max_tokens), resumable=asked.resumable, model=settings.triton_model
    )
    rpc = upstream.open(generation, request.headers)
    try:
        if asked.stream:
            return _event_stream(request, rpc, answer, parser, asked.include_usage, asked.resumable)
        frames = await unless_gone(request.receive, collect(rpc, settings.max_whole_answer_bytes), rpc.abort)
    except GenerationError as error:
        raise named(error, kind) from None
    token_ids = [token for frame in frames for token in frame.token_ids]
    return _json(answer.whole(streamed.parsed(frames, parser), token_ids, frames[-1].finish_reason or ""))


def _resume(request: Request, came_with: str) -> Response:
    position = event_id.parse(came_with)
    settings: GatewaySettings = request.app.state.settings
    answer = Answer(
        position.kind,
        position.stream_id,
        position.created,
        settings.served_model_name,
        position.prompt_tokens,
        position.return_token_ids,
    )
    if position.completion_tokens is not None:
        return EventStream(streamed.ending_alone(answer, position), heartbeat_s=settings.heartbeat_s)
    upstream: Upstream = request.app.state.upstream
    generation = GenerateRequest(
        resume_stream_id=position.stream_id,
        resume_frame=position.frame + 1,
        resumable=True,
        model=settings.triton_model,
    )
    rpc = upstream.open(generation, request.headers)
    return _event_stream(request, rpc, answer, None, position.include_usage, True)


def _event_stream(
    request: Request,
    rpc: UpstreamRpc,
    answer: Answer,
    parser: ToolCallParser | None,
    include_usage: bool,
    resumable: bool,
) -> Response:
    settings: GatewaySettings = request.app.state.settings
    events = streamed.events(rpc, answer, parser, include_usage=include_usage, resumable=resumable)
    return EventStream(
        naming(events, answer.kind),
        heartbeat_s=settings.heartbeat_s,
        on_written=rpc.written,
        on_disconnect=rpc.abort,
    )


def _json(value: object) -> Response:
    return Response(encode_json(value), media_type="application/json", headers=NO_STORE)


routes: list[BaseRoute] = [
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/models", models),
    Route("/v1/models/{model:path}", model),
    Route("/v1/streams/{stream_id}", stream),
]
