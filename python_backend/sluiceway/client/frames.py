"""What a generation asks for, what it gives, and how it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Frame:
    """A piece of an answer. sequence: from 0, one more each. first_token_index: of its first token in the answer.

    finish_reason: in the last frame only: stop, length, cancelled, stalled, quota, detached, degraded, shutdown, error.
    stream_id: in the first frame of a resumable stream, and in the last of a detached one; else "".
    """

    text: str
    token_ids: tuple[int, ...]
    sequence: int
    first_token_index: int
    finish_reason: str | None = None
    stream_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """prompt and sampling (Triton's vllm_backend names them), or a stream to come back to and its next frame."""

    prompt: str = ""
    sampling: Mapping[str, object] = field(default_factory=dict)
    resumable: bool = False
    resume_stream_id: str = ""
    resume_frame: int | None = None
    model: str = "llm"


@dataclass(frozen=True, slots=True)
class Slow:
    """The program left frames unread: how many, and for how many seconds the oldest."""

    unread_frames: int
    unread_s: float


class GenerationError(Exception):
    """A generation was refused or broke off.

    code: gRPC's word for a status in lower case ("unavailable", "invalid_argument", ...), or the backend's for a
    stream that cannot be resumed ("stream_unknown", "frame_expired", ...). retry_after_s: when it is worth another try.
    """

    def __init__(self, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
