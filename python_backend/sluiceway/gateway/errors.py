"""Refusals over HTTP: one meaning, the error object of OpenAI's API or of Triton's."""

from __future__ import annotations

import json
import logging
import math
import re
import traceback
from collections.abc import Callable, Mapping

from starlette.responses import Response

from sluiceway.client.frames import GenerationError

_log = logging.getLogger(__name__)
NO_STORE = {"cache-control": "no-store"}
_RETRY_S = 1.0
# What the backend's errors and gRPC's codes mean over HTTP. Anything else is our mistake: 500.
_STATUS = {
    "invalid_argument": 400,
    "out_of_range": 400,
    "failed_precondition": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "unimplemented": 404,
    "stream_unknown": 404,
    "stream_foreign": 404,  # as unknown: whoever may not have it need not know that it exists
    "frame_unknown": 400,
    "stream_complete": 410,
    "stream_expired": 410,
    "frame_expired": 410,
    "resource_exhausted": 429,
    "quota": 429,
    "unavailable": 503,
    "spool_unreachable": 503,
    "shutdown": 503,
    "deadline_exceeded": 504,
}
_KIND = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_PARAM = re.compile(r"([a-z_]+(?:\.[a-z_]+)*): ")


class Problem(Exception):  # noqa: N818 - an answer, not a fault
    """A request is refused, or an answer broke off. The text goes to the client and holds no content.

    kind: OpenAI's ``type``. param: the field that is wrong. code: for programs. closes: the request's body was not
    read to its end, so the connection cannot go on.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.kind = kind or _KIND.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.retry_after_s = _RETRY_S if retry_after_s is None and status in (429, 503) else retry_after_s
        self._headers = {} if headers is None else dict(headers)
        self.closes = closes

    @property
    def headers(self) -> dict[str, str]:
        headers = NO_STORE | self._headers
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.closes:
            headers["connection"] = "close"
        return headers


ErrorBody = Callable[[Problem], dict[str, object]]


def openai_body(problem: Problem) -> dict[str, object]:
    error = {"message": problem.message, "type": problem.kind, "param": problem.param, "code": problem.code}
    return {"error": error}


def triton_body(problem: Problem) -> dict[str, object]:
    return {"error": problem.message}


def body_for(path: str) -> ErrorBody:
    """The shape that clients of ``path`` know."""
    return triton_body if path == "/v2" or path.startswith("/v2/") else openai_body


def problem_of(error: BaseException) -> Problem:
    """What ``error`` means over HTTP. A fault of ours is logged, without the text that it may carry."""
    if isinstance(error, Problem):
        return error
    if not isinstance(error, GenerationError):
        log_fault(error)
        return Problem(500, "the gateway failed; its log says where", code="internal")
    status = _STATUS.get(error.code, 500)
    message = _STREAM_UNKNOWN if error.code == "stream_foreign" else error.message
    code = "stream_unknown" if error.code == "stream_foreign" else error.code
    named = _PARAM.match(error.message) if error.code == "invalid_argument" else None
    return Problem(
        status, message, code=code, param=named.group(1) if named else None, retry_after_s=error.retry_after_s
    )


_STREAM_UNKNOWN = "stream_unknown: no stream has, or lately had, that id"


def respond(problem: Problem, body: ErrorBody) -> Response:
    return Response(
        encode_json(body(problem)),
        status_code=problem.status,
        headers=problem.headers,
        media_type="application/json",
    )


def encode_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def log_fault(error: BaseException) -> None:
    """Where it happened and its kind; messages of exceptions can hold what a client sent."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    _log.error("%s at\n%s", type(error).__name__, frames)
