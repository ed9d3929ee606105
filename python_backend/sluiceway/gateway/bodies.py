"""A request's JSON body, within its limits of size and time."""

from __future__ import annotations

import asyncio
import json

from starlette.requests import ClientDisconnect, Request

from sluiceway.gateway.disconnect import ClientGone
from sluiceway.gateway.errors import Problem
from sluiceway.gateway.settings import GatewaySettings


async def read_json(request: Request, *, any_type: bool = False) -> object:
    """The body's value. Raises Problem 400, 408, 413 or 415, or ClientGone.

    any_type: whatever the content type says, as Triton does: ``curl -d`` says that a form comes.
    """
    settings: GatewaySettings = request.app.state.settings
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not any_type and media_type != "application/json":
        raise Problem(415, "content-type: must be application/json", code="unsupported_media_type", closes=True)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "content-encoding: must be left out", code="unsupported_media_type", closes=True)
    return parse_json(await _read(request, settings))


async def read_object(request: Request, *, any_type: bool = False) -> dict[str, object]:
    """``read_json`` of an object."""
    value = await read_json(request, any_type=any_type)
    if not isinstance(value, dict):
        raise Problem(400, "the body must be a JSON object", code="invalid_body")
    return value


def parse_json(data: bytes, what: str = "the body") -> object:
    """Raises Problem 400. Refused too: NaN and infinities, a key given twice, text that is no Unicode."""
    try:
        value: object = json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_unique)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        why = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except UnicodeEncodeError:
        why = "half of a surrogate pair"
    except _JsonError as error:
        why = str(error)
    except (ValueError, RecursionError):
        why = "not UTF-8, or numbers or nesting too large"
    else:
        return value
    raise Problem(400, f"{what}: not JSON: {why}", code="invalid_json")


class _JsonError(ValueError):
    pass


async def _read(request: Request, settings: GatewaySettings) -> bytes:
    limit = settings.max_body_bytes
    too_large = Problem(413, f"the body may have at most {limit} bytes", code="body_too_large", closes=True)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(settings.request_timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        text = f"the body did not come within {settings.request_timeout_s:g} s"
        raise Problem(408, text, code="request_timeout", closes=True) from None
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


def _refuse_constant(name: str) -> object:
    raise _JsonError(f"{name} is no JSON number")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _JsonError("a key is given twice in one object")
    return value
