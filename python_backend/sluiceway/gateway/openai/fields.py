"""What both of OpenAI's generation requests may hold. Strict: true is not 1, and an unknown name is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from sluiceway.gateway.errors import Problem
from sluiceway.runtime.sampling import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS

_Part = TypeVar("_Part", bound="Part")
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Zero = Annotated[float, Field(ge=0, le=0)]
Label = Annotated[str, Field(max_length=512)]


class Part(BaseModel):
    """Of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Part):
    """include_obfuscation: padding that hides lengths; there is none, so only false is true."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class Fields(Part):
    """resumable: the answer may be taken up again with ``Last-Event-ID``; ours. top_k to return_token_ids: vLLM's.

    Below them: fields with one value that asks for nothing, and labels that change nothing.
    """

    model: str = Field(max_length=256)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, le=10_000_000)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=0, le=2**63 - 1)
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOP_STRINGS)] | None = None
    top_k: int | None = Field(None, ge=-1, le=1_000_000)
    min_tokens: int | None = Field(None, ge=0, le=10_000_000)
    ignore_eos: bool | None = None
    return_token_ids: bool = False
    resumable: bool = False

    n: Literal[1] | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    user: Label | None = None
    metadata: Annotated[dict[str, Label], Field(max_length=16)] | None = None

    @model_validator(mode="after")
    def _belongs_to_a_stream(self) -> Self:
        for name in ("stream_options", "resumable"):
            if getattr(self, name) and not self.stream:
                raise ValueError(f"{name}: only with stream true")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, max_tokens: int) -> dict[str, object]:
        """In the model's names (vLLM's); what is left out or null is the model's default."""
        names = ("temperature", "top_p", "seed", "stop", "top_k", "min_tokens", "ignore_eos")
        given = {name: getattr(self, name) for name in names}
        return {"max_tokens": max_tokens} | {name: value for name, value in given.items() if value is not None}


def parse(kind: type[_Part], body: Mapping[str, object]) -> _Part:
    """Raises Problem 400 that names the field and what it takes, not what it held."""
    try:
        return kind.model_validate(dict(body))
    except ValidationError as error:
        wrong = [(_path(body, detail), detail) for detail in error.errors(include_input=False)]
    # An unknown name first: a mistyped one explains more than what follows from it. Of the ways in which a value
    # could have been right, the one that it came furthest with.
    path, detail = min(wrong, key=lambda each: (each[1]["type"] != "extra_forbidden", -len(each[0])))
    raise _problem(".".join(path)[:256], dict(detail))


def _path(body: Mapping[str, object], detail: ErrorDetails) -> list[str]:
    """Of the field, without the names that pydantic gives to the alternatives of a type."""
    path: list[str] = []
    value: Any = body  # JSON, to any depth
    for step in detail["loc"]:
        has_it = step in value if isinstance(value, Mapping) else isinstance(value, list) and isinstance(step, int)
        if has_it:
            value = value[step]
            path.append(str(step)[:64])
    return [*path, str(detail["loc"][-1])] if detail["type"] == "missing" else path


def _problem(path: str, detail: Mapping[str, Any]) -> Problem:
    match detail["type"]:
        case "value_error":  # a validator's own words, which begin with the field's name
            text = str(detail["ctx"]["error"])
            return Problem(400, text, param=text.partition(":")[0], code="invalid_value")
        case "extra_forbidden":
            text, code = "not a field that is served", "unknown_parameter"
        case "missing":
            text, code = "missing", "missing_required_parameter"
        case _:
            text, code = str(detail["msg"]).replace("Input should", "must"), "invalid_value"
    return Problem(400, f"{path}: {text}", param=path, code=code)
