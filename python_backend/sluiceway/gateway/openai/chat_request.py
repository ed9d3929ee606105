"""The body of POST /v1/chat/completions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sluiceway.gateway.bodies import parse_json
from sluiceway.gateway.errors import Problem
from sluiceway.gateway.openai.fields import Fields, Label, Part

Name = Annotated[str, Field(min_length=1, max_length=64)]


class TextPart(Part):
    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(min_length=1)]


class SystemMessage(Part):
    role: Literal["system", "developer"]
    content: Content
    name: Name | None = None


class UserMessage(Part):
    role: Literal["user"]
    content: Content
    name: Name | None = None


class CalledFunction(Part):
    """arguments: a JSON object in a string."""

    name: Name
    arguments: str


class ToolCall(Part):
    id: Label
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Part):
    """The output-only fields are taken as null: clients send back the message that they got."""

    role: Literal["assistant"]
    content: Content | None = None
    name: Name | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise ValueError("messages: content of an assistant's message may be left out only with tool_calls")
        return self


class ToolMessage(Part):
    role: Literal["tool"]
    content: Content
    tool_call_id: Label


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class Function(Part):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None


class Tool(Part):
    type: Literal["function"]
    function: Function


class ResponseFormat(Part):
    type: Literal["text"]


class ChatRequest(Fields):
    """tool_choice: calls cannot be forced, for the engine decodes freely."""

    messages: list[Message] = Field(min_length=1, max_length=10_000)
    max_completion_tokens: int | None = Field(None, ge=1, le=10_000_000)
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: Literal[True] | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text"]] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise ValueError("max_tokens: another number than max_completion_tokens; give one of them")
        if self.resumable and self.wanted_tools():
            raise ValueError("resumable: not with tools: where a call stands in the text would be lost")
        return self

    def wanted_tools(self) -> list[dict[str, Any]]:
        """As the template takes them; none if the request forbids calls."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]

    def template_messages(self) -> list[dict[str, Any]]:
        """Raises Problem 400."""
        return template_messages(self.messages)


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """``messages`` as chat templates take them: contents are texts, the arguments of calls are objects.

    Raises Problem 400.
    """
    return [_for_template(message) for message in messages]


def _for_template(message: Message) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    value: dict[str, Any] = {"role": role, "content": _text(message.content)}
    if isinstance(message, ToolMessage):
        value["tool_call_id"] = message.tool_call_id
    elif message.name is not None:
        value["name"] = message.name
    if isinstance(message, AssistantMessage) and message.tool_calls:
        value["tool_calls"] = [_call(call) for call in message.tool_calls]
    return value


def _text(content: str | Sequence[TextPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def _call(call: ToolCall) -> dict[str, Any]:
    name = "messages.tool_calls.function.arguments"
    arguments = parse_json(call.function.arguments.encode(), name)
    if not isinstance(arguments, dict):
        raise Problem(400, f"{name}: must be {json.dumps('{...}')}, an object in a string", param=name)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
