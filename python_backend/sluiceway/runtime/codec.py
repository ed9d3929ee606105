"""Triton's tensors to a request, and frames to tensors. Knows numpy, not Triton: tests need no server."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sluiceway.core.commands import Frame
from sluiceway.engine.protocol import SamplingParams
from sluiceway.runtime.config_sections import AdmissionConfig
from sluiceway.runtime.errors import RequestError
from sluiceway.runtime.inputs import Array, bytes_of, flag, integer
from sluiceway.runtime.sampling import parse_sampling, unique_pairs

REQUEST_ID_PARAMETER = "x-request-id"
MAX_ID_CHARACTERS = 256
FLAGS = (
    "stream",
    "exclude_input_in_output",
    "return_token_ids",
    "return_frame",
    "return_finish_reason",
    "resumable",
    "acks",
)
INPUTS = ("text_input", "sampling_parameters", "resume_stream_id", "resume_frame", *FLAGS)
STREAM_ID_CHARACTERS = 32
MAX_FRAME = 2**53
_STREAM_ID = re.compile(rf"[0-9a-f]{{{STREAM_ID_CHARACTERS}}}")


@dataclass(frozen=True, slots=True)
class RawRequest:
    """What Triton hands over. inputs: name to array, [1] each; parameters: Triton's JSON object."""

    inputs: Mapping[str, Array]
    client_id: str = ""
    parameters: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The outputs that were asked for, beside ``text_output``.

    sparse: ``finish_reason`` only where there is one. Triton 24.10 keeps every response of a stream until the stream
    ends, at 1,000 bytes and 400 more for each output; our own clients, which send acks, do without empty ones.
    """

    token_ids: bool = False
    frame: bool = False
    finish_reason: bool = False
    sparse: bool = False

    def has_reason(self, frame: Frame) -> bool:
        """``frame`` carries ``finish_reason``."""
        return self.finish_reason and not (self.sparse and frame.finish_reason is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A request that was understood. ``rpc_id`` None: nobody told Envoy's id, so there is no signal.

    stream_id: what the client may come back with, "" if it did not ask to. resume_frame: it is back, and
    this is the next frame that it wants; there is no prompt then. acks: it will acknowledge frames.
    """

    prompt: str
    client_id: str
    rpc_id: str | None
    stream: bool
    echo: bool  # the prompt comes before the answer
    outputs: Outputs = field(default_factory=Outputs)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stream_id: str = ""
    resume_frame: int | None = None
    acks: bool = False


def new_stream_id() -> str:
    """Not to be guessed: whoever knows it and has the tenant's identity gets the answer."""
    return secrets.token_hex(STREAM_ID_CHARACTERS // 2)


def parse(
    raw: RawRequest, admission: AdmissionConfig, make_stream_id: Callable[[], str] = new_stream_id
) -> GenerateRequest:
    """Raise RequestError (INVALID_ARG) naming the input, what it holds and what it may hold."""
    flags = {name: flag(raw.inputs, name) for name in FLAGS}
    stream_id, resume_frame = _resume(raw.inputs, is_streaming=flags["stream"] is not False)
    is_back = resume_frame is not None
    prompt = "" if is_back else _prompt(bytes_of(raw.inputs, "text_input"), admission.max_prompt_bytes)
    streaming = bool(flags["stream"]) or is_back
    for name in ("resumable", "acks"):
        if flags[name] and not streaming:
            raise RequestError(f"{name}: only with stream true; a whole answer is one message")
    if flags["resumable"] and not is_back:
        stream_id = make_stream_id()
    if streaming and flags["exclude_input_in_output"] is False:  # as vllm_backend
        raise RequestError("exclude_input_in_output: must be true (or left out) when stream is true")
    return GenerateRequest(
        prompt=prompt,
        client_id=raw.client_id[:MAX_ID_CHARACTERS],
        rpc_id=rpc_id_of(raw.parameters),
        stream=streaming,
        echo=not streaming and not flags["exclude_input_in_output"],
        outputs=Outputs(
            token_ids=bool(flags["return_token_ids"]),
            frame=bool(flags["return_frame"]),
            finish_reason=bool(flags["return_finish_reason"]),
            sparse=bool(flags["acks"]),
        ),
        sampling=parse_sampling(bytes_of(raw.inputs, "sampling_parameters"), admission.max_tokens_limit),
        stream_id=stream_id,
        resume_frame=resume_frame,
        acks=bool(flags["acks"]),
    )


def _resume(inputs: Mapping[str, Array], *, is_streaming: bool) -> tuple[str, int | None]:
    """The stream that a client comes back to and its next frame there; ("", None): a new stream."""
    value, frame = bytes_of(inputs, "resume_stream_id"), integer(inputs, "resume_frame")
    if value is None:
        if frame is not None:
            raise RequestError("resume_frame: only with resume_stream_id")
        return "", None
    stream_id = value.decode("latin-1")
    if not _STREAM_ID.fullmatch(stream_id):
        raise RequestError(f"resume_stream_id: must be {STREAM_ID_CHARACTERS} characters of 0-9 and a-f")
    if frame is None:
        raise RequestError("resume_frame: missing; with resume_stream_id, the next frame wanted")
    if not 0 <= frame < MAX_FRAME:
        raise RequestError(f"resume_frame: must be 0 to 2**53 - 1, got {frame}")
    for name in ("text_input", "sampling_parameters"):
        if name in inputs:
            raise RequestError(f"{name}: must be left out with resume_stream_id; the stream has its own")
    if not is_streaming:
        raise RequestError("stream: must be true (or left out) with resume_stream_id")
    return stream_id, frame


def _prompt(value: bytes | None, max_bytes: int) -> str:
    if value is None:
        raise RequestError("text_input: missing")
    if not value:
        raise RequestError("text_input: empty; a prompt has at least 1 character")
    if len(value) > max_bytes:
        raise RequestError(f"text_input: {len(value)} bytes, at most {max_bytes} are taken")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"text_input: not UTF-8 at byte {error.start}") from None


def rpc_id_of(parameters: str) -> str | None:
    """Envoy's x-request-id. Triton writes forwarded headers and the client's own parameters into one
    object, so a name that comes twice is a client that tries to be somebody else. Without Envoy in front a
    client's own parameter cannot be told from the header; it then hurts its own stream only.
    """
    if not parameters:
        return None
    try:
        values = json.loads(parameters, object_pairs_hook=unique_pairs)
    except RequestError as error:
        raise RequestError(f"request parameters: {error}") from None
    except (ValueError, RecursionError):
        raise RequestError("request parameters: not JSON") from None
    if not isinstance(values, dict):
        raise RequestError("request parameters: not a JSON object")
    value = values.get(REQUEST_ID_PARAMETER)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARACTERS:
        raise RequestError(f"request parameter {REQUEST_ID_PARAMETER}: must be 1 to {MAX_ID_CHARACTERS} characters")
    return value


def tensors(frame: Frame, outputs: Outputs, prefix: str = "", stream_id: str = "") -> list[tuple[str, Array]]:
    """Output name and array of one response; only what was asked for is built.

    prefix: comes before the text. stream_id: "" in frames that do not carry it.
    """
    text = (prefix + frame.text).encode()
    result: list[tuple[str, Array]] = [("text_output", np.array([text], dtype=np.object_))]
    if outputs.token_ids:
        result.append(("token_ids", np.array(frame.token_ids, dtype=np.int32)))
    if outputs.frame:
        result.append(("frame", np.array([frame.sequence, frame.first_token_index], dtype=np.int64)))
    if outputs.has_reason(frame):
        reason = "" if frame.finish_reason is None else frame.finish_reason.value
        result.append(("finish_reason", np.array([reason.encode()], dtype=np.object_)))
    if stream_id:
        result.append(("stream_id", np.array([stream_id.encode()], dtype=np.object_)))
    return result
