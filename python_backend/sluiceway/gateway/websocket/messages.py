"""What a client says on ``/v1/stream``: one JSON object a message, its ``type`` first of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from sluiceway.gateway.bodies import parse_json
from sluiceway.gateway.errors import Problem
from sluiceway.gateway.openai import fields
from sluiceway.gateway.openai.chat_request import Message, template_messages
from sluiceway.gateway.openai.completion_request import Prompt

_Kind = TypeVar("_Kind", bound=fields.Part)
_MAX_FRAME = 2**53 - 1


class Options(fields.Part):
    """acks: the client says itself what it consumed. Else what left the gateway and its front counts."""

    acks: bool = False
    return_token_ids: bool = False


class Generate(fields.Fields, Options):
    """A new answer. The fields are those of OpenAI's requests; messages or prompt, one of them."""

    type: Literal["generate"]
    model: str = Field("", max_length=256)
    messages: list[Message] | None = Field(None, min_length=1, max_length=10_000)
    prompt: Prompt | None = None
    max_completion_tokens: int | None = Field(None, ge=1, le=10_000_000)
    stream: Literal[True] = True
    stream_options: None = None

    @model_validator(mode="after")
    def _asks_one_thing(self) -> Self:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("messages: give either messages or prompt")
        return self

    def template_messages(self) -> list[dict[str, Any]]:
        """Raises Problem 400."""
        return template_messages(self.messages or ())


class ResumeStream(Options):
    """Take an answer up again, from ``frame`` on."""

    type: Literal["resume_stream"]
    stream_id: str = Field(min_length=1, max_length=64)
    frame: int = Field(ge=0, le=_MAX_FRAME)


class Ack(fields.Part):
    """The client consumed all frames up to and with ``frame``."""

    type: Literal["ack"]
    frame: int = Field(ge=0, le=_MAX_FRAME)


class Control(fields.Part):
    """pause: no more frames, until resume. cancel: the frame with the finish reason still comes."""

    type: Literal["pause", "resume", "cancel", "levels"]


_OPENINGS: Mapping[str, type[Generate | ResumeStream]] = {"generate": Generate, "resume_stream": ResumeStream}
_CONTROLS: Mapping[str, type[Ack | Control]] = {
    "ack": Ack,
    **dict.fromkeys(("pause", "resume", "cancel", "levels"), Control),
}


def opening(text: str) -> Generate | ResumeStream:
    """The first message. Raises Problem 400."""
    return _parse(text, _OPENINGS)


def control(text: str) -> Ack | Control:
    """Any message after it. Raises Problem 400."""
    return _parse(text, _CONTROLS)


def _parse(text: str, kinds: Mapping[str, type[_Kind]]) -> _Kind:
    value = parse_json(text.encode(), "the message")
    if not isinstance(value, dict):
        raise Problem(400, "the message must be a JSON object", code="invalid_body")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise Problem(400, f"type: must be one of {', '.join(kinds)} here", param="type", code="invalid_value")
    return fields.parse(kinds[kind], value)
