"""The request's ``sampling_parameters``: JSON, named as vLLM names them, types strict."""

from __future__ import annotations

import difflib
import json
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluiceway.engine.protocol import SamplingParams
from sluiceway.runtime.errors import RequestError, kind

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_JSON_BYTES = 64 * 1024

Text = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]

# What each field takes, in the words of the error message. {max_tokens}: admission.max_tokens_limit.
ACCEPTS = {
    "max_tokens": "an integer from 1 to {max_tokens}",
    "min_tokens": "an integer from 0 to max_tokens",
    "temperature": "a number from 0 to 10",
    "top_k": "an integer from -1 (off) to 1000000",
    "top_p": "a number above 0 and up to 1",
    "seed": f"an integer from 0 to {2**63 - 1}, or null",
    "stop": f"a string, or a list of up to {MAX_STOP_STRINGS}, each of 1 to {MAX_STOP_CHARACTERS} characters",
    "ignore_eos": "true or false",
}


class _Sampling(BaseModel):
    """Strict: true is not 1, "0.5" is not 0.5. Whole numbers are numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    max_tokens: int = Field(16, ge=1)
    min_tokens: int = Field(0, ge=0)
    temperature: float = Field(1.0, ge=0, le=10)
    top_k: int = Field(0, ge=-1, le=1_000_000)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=0, le=2**63 - 1)
    stop: Text | Annotated[list[Text], Field(max_length=MAX_STOP_STRINGS)] | None = None
    ignore_eos: bool = False


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json.loads: a key given twice is an error, not a choice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"the key {twice[:64]!r} is given twice")
    return result


def _no_constant(name: str) -> NoReturn:
    raise RequestError(f"{name} is not a JSON number")


def parse_sampling(raw: bytes | None, max_tokens_limit: int) -> SamplingParams:
    """Raise RequestError (INVALID_ARG) for anything that is not exactly understood."""
    if raw is None or not raw:
        return SamplingParams()
    if len(raw) > MAX_JSON_BYTES:
        raise RequestError(f"sampling_parameters: {len(raw)} bytes, at most {MAX_JSON_BYTES} are taken")
    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=unique_pairs, parse_constant=_no_constant)
    except RequestError as error:
        raise RequestError(f"sampling_parameters: {error}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"sampling_parameters: not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise RequestError(f"sampling_parameters: not JSON at character {error.pos}: {error.msg}") from None
    except (ValueError, RecursionError):  # integers of thousands of digits, lists in lists in lists
        raise RequestError("sampling_parameters: not JSON that we can read: numbers or nesting too large") from None
    if not isinstance(data, dict):
        raise RequestError(f"sampling_parameters: must be a JSON object, got {kind(data)}")
    return _validated(data, max_tokens_limit)


def _validated(data: dict[str, Any], max_tokens_limit: int) -> SamplingParams:
    try:
        given = _Sampling.model_validate(data)
    except ValidationError as error:
        # An unknown key first: a mistyped name explains more than what follows from it.
        details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
        field = str(details[0]["loc"][0])
        if details[0]["type"] == "extra_forbidden":
            raise RequestError(_unknown(field)) from None
        raise _wrong(field, data[field], max_tokens_limit) from None
    if given.max_tokens > max_tokens_limit:
        raise _wrong("max_tokens", given.max_tokens, max_tokens_limit)
    if given.min_tokens > given.max_tokens:
        raise RequestError(
            f"sampling_parameters.min_tokens: must be at most max_tokens ({given.max_tokens}), got {given.min_tokens}"
        )
    stop = given.stop or ()
    return SamplingParams(
        max_tokens=given.max_tokens,
        min_tokens=given.min_tokens,
        temperature=given.temperature,
        top_k=max(given.top_k, 0),
        top_p=given.top_p,
        seed=given.seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        ignore_eos=given.ignore_eos,
    )


def _unknown(field: str) -> str:
    close = difflib.get_close_matches(field[:64], ACCEPTS, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(ACCEPTS)}"
    return f"sampling_parameters: unknown key {field[:64]!r}; {hint}"


def _wrong(field: str, value: object, max_tokens_limit: int) -> RequestError:
    accepts = ACCEPTS[field].format(max_tokens=max_tokens_limit)
    return RequestError(f"sampling_parameters.{field}: must be {accepts}, got {kind(value)}")
