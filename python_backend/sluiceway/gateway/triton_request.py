"""The JSON of Triton's generate extension to a request, and frames to its JSON.

A key, at the top or in ``parameters``, that names an input of the model is that input; any other key is a request
parameter, which the model takes as a sampling parameter, as vllm_backend does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluiceway.client.frames import Frame, GenerateRequest
from sluiceway.gateway.bodies import parse_json
from sluiceway.gateway.errors import Problem

VERSION = "1"
_FLAGS = ("stream", "exclude_input_in_output", "return_token_ids", "return_frame", "return_finish_reason", "resumable")
_TEXTS = ("text_input", "sampling_parameters", "resume_stream_id")
_MAX_ID_CHARACTERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonRequest:
    """generation: what the model is asked. streams: frame by frame, not in one piece. echo: the prompt comes first."""

    generation: GenerateRequest
    streams: bool
    echo: bool
    id: str = ""
    outputs: frozenset[str] = field(default_factory=frozenset)


def parse(body: Mapping[str, object], model: str) -> TritonRequest:
    """Raises Problem 400 that names the key; what the values may be is the model's to say."""
    inputs, parameters = _sorted_out(body)
    request_id = inputs.pop("id", "")
    if not isinstance(request_id, str) or len(request_id) > _MAX_ID_CHARACTERS:
        raise _wrong("id", f"a string of at most {_MAX_ID_CHARACTERS} characters")
    flags = {name: _flag(inputs, name) for name in _FLAGS}
    texts = {name: _text(inputs, name) for name in _TEXTS}
    resume_frame = inputs.get("resume_frame")
    if resume_frame is not None and (not isinstance(resume_frame, int) or isinstance(resume_frame, bool)):
        raise _wrong("resume_frame", "an integer")
    is_back = texts["resume_stream_id"] is not None or resume_frame is not None
    if is_back and (not texts["resume_stream_id"] or resume_frame is None):
        raise Problem(400, "resume_stream_id and resume_frame: only together", param="resume_stream_id")
    if is_back and (texts["text_input"] is not None or texts["sampling_parameters"] is not None or parameters):
        raise Problem(400, "text_input, sampling_parameters: must be left out with resume_stream_id")
    if not is_back and texts["text_input"] is None:
        raise Problem(400, "text_input: missing", param="text_input")
    streams = bool(flags["stream"]) or is_back
    if streams and flags["exclude_input_in_output"] is False:  # as the model says
        raise _wrong("exclude_input_in_output", "true (or left out) when stream is true")
    generation = GenerateRequest(
        prompt=texts["text_input"] or "",
        sampling={} if is_back else _sampling(texts["sampling_parameters"], parameters),
        resumable=bool(flags["resumable"]),
        resume_stream_id=texts["resume_stream_id"] or "",
        resume_frame=resume_frame,
        model=model,
    )
    outputs = frozenset(name for name in _FLAGS if name.startswith("return_") and flags[name])
    echo = not streams and not flags["exclude_input_in_output"]
    return TritonRequest(generation=generation, streams=streams, echo=echo, id=request_id, outputs=outputs)


def answer(request: TritonRequest, frames: Sequence[Frame]) -> dict[str, object]:
    """One response of the model, made of ``frames``, at least one."""
    text = "".join(frame.text for frame in frames)
    value: dict[str, object] = {"id": request.id} if request.id else {}
    value |= {"model_name": request.generation.model, "model_version": VERSION}
    value["text_output"] = request.generation.prompt + text if request.echo else text
    if "return_token_ids" in request.outputs:
        value["token_ids"] = [token for frame in frames for token in frame.token_ids]
    if "return_frame" in request.outputs:
        value["frame"] = [frames[-1].sequence, frames[0].first_token_index]
    if "return_finish_reason" in request.outputs:
        value["finish_reason"] = frames[-1].finish_reason or ""
    stream_id = next((frame.stream_id for frame in frames if frame.stream_id), "")
    if stream_id:
        value["stream_id"] = stream_id
    return value


def _sorted_out(body: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Inputs, and parameters."""
    nested = body.get("parameters", {})
    if not isinstance(nested, dict):
        raise _wrong("parameters", "an object")
    known = {*_FLAGS, *_TEXTS, "resume_frame", "id"}
    inputs: dict[str, object] = {}
    parameters: dict[str, object] = {}
    for values in ({name: value for name, value in body.items() if name != "parameters"}, nested):
        for name, value in values.items():
            target = inputs if name in known else parameters
            if name in target:
                raise Problem(400, f"{name[:64]}: given twice, at the top and in parameters")
            target[name] = value
    return inputs, parameters


def _sampling(text: str | None, parameters: Mapping[str, object]) -> dict[str, object]:
    given: object = {} if not text else parse_json(text.encode(), "sampling_parameters")
    if not isinstance(given, dict):
        raise _wrong("sampling_parameters", "a JSON object in a string")
    twice = sorted(given.keys() & parameters.keys())
    if twice:
        raise Problem(400, f"{twice[0][:64]}: given twice, in sampling_parameters and beside it")
    return given | dict(parameters)


def _flag(inputs: Mapping[str, object], name: str) -> bool | None:
    value = inputs.get(name)
    if value is not None and not isinstance(value, bool):
        raise _wrong(name, "true or false")
    return value


def _text(inputs: Mapping[str, object], name: str) -> str | None:
    value = inputs.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong(name, "a string")
    return value


def _wrong(name: str, accepted: str) -> Problem:
    return Problem(400, f"{name}: must be {accepted}", param=name)
