"""A streamed answer in OpenAI's format: one event a frame, then usage if asked for, then ``[DONE]``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from sluiceway.client.frames import Frame
from sluiceway.gateway.errors import Problem, encode_json
from sluiceway.gateway.events import Event
from sluiceway.gateway.openai.event_id import EventId
from sluiceway.gateway.openai.objects import Answer
from sluiceway.gateway.openai.tool_calls import Call, ToolCallParser
from sluiceway.gateway.upstream_rpc import UpstreamRpc

DONE = Event(data="[DONE]")


async def events(
    rpc: UpstreamRpc, answer: Answer, parser: ToolCallParser | None, *, include_usage: bool, resumable: bool
) -> AsyncIterator[Event]:
    """Raises GenerationError, and Problem for a stream that goes on without this client. Closes ``rpc``.

    A frame whose text is held back (a tool call that has no end yet) is an event all the same, with an empty delta:
    each event acknowledges one frame. parser: None: the text is only text.
    """
    completion_tokens = 0
    try:
        async for frame in rpc:
            if frame.finish_reason == "detached":
                raise Problem(503, _DETACHED, code="detached")
            if frame.sequence == 0 and resumable and frame.stream_id:
                answer.name = frame.stream_id
            completion_tokens = frame.first_token_index + len(frame.token_ids)
            chunk = answer.chunk(
                _parts(parser, frame),
                frame.token_ids,
                is_first=frame.sequence == 0,
                finish_reason=frame.finish_reason,
                has_usage=include_usage,
            )
            data = encode_json(chunk).decode()
            event_id = _id(answer, frame, completion_tokens, include_usage) if resumable else str(frame.sequence)
            yield Event(data=data, id=event_id, frame=frame.sequence)
    finally:
        await rpc.aclose()
    for event in ending(answer, completion_tokens, include_usage=include_usage):
        yield event


def ending(answer: Answer, completion_tokens: int, *, include_usage: bool) -> list[Event]:
    """What follows the event with the finish reason."""
    if not include_usage:
        return [DONE]
    return [Event(data=encode_json(answer.usage_chunk(completion_tokens)).decode()), DONE]


async def ending_alone(answer: Answer, came_with: EventId) -> AsyncIterator[Event]:
    """For a client that has all but this."""
    assert came_with.completion_tokens is not None
    for event in ending(answer, came_with.completion_tokens, include_usage=came_with.include_usage):
        yield replace(event, id=str(came_with))


def parsed(frames: Sequence[Frame], parser: ToolCallParser | None) -> list[str | Call]:
    """Of a whole answer."""
    return [part for frame in frames for part in _parts(parser, frame)]


def _parts(parser: ToolCallParser | None, frame: Frame) -> list[str | Call]:
    if parser is None:
        return [frame.text]
    parts = parser.feed(frame.text)
    return parts if frame.finish_reason is None else parts + parser.finish()


def _id(answer: Answer, frame: Frame, completion_tokens: int, include_usage: bool) -> str:
    return str(
        EventId(
            kind=answer.kind,
            include_usage=include_usage,
            return_token_ids=answer.return_token_ids,
            stream_id=answer.name,
            frame=frame.sequence,
            created=answer.created,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=None if frame.finish_reason is None else completion_tokens,
        )
    )


_DETACHED = "detached: the answer goes on without you; come back with Last-Event-ID to read on"
