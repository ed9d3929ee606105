"""The ``id`` of a resumable answer's events: everything that a gateway must know to go on after it.

It keeps no state of its own, so what a client brings back in ``Last-Event-ID`` is all there is. A forged one changes
nothing but the forger's own answer: whether the stream is its own is the backend's to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sluiceway.gateway.errors import Problem

_FORM = re.compile(
    r"(chat|text)(u?)(t?)\.([0-9a-zA-Z_-]{1,64})\.(\d{1,12})\.(\d{1,12})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventId:
    """kind: "chat" or "text". frame: the last one that the client has. created: Unix time in seconds.

    completion_tokens: of a complete answer, with its last frame; else None.
    """

    kind: str
    include_usage: bool
    return_token_ids: bool
    stream_id: str
    frame: int
    created: int
    prompt_tokens: int
    completion_tokens: int | None = None

    def __str__(self) -> str:
        asked = "u" * self.include_usage + "t" * self.return_token_ids
        text = f"{self.kind}{asked}.{self.stream_id}.{self.frame}.{self.created}.{self.prompt_tokens}"
        return text if self.completion_tokens is None else f"{text}.{self.completion_tokens}"


def parse(text: str) -> EventId:
    """Raises Problem 400."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise Problem(
            400, "Last-Event-ID: not the id of a resumable answer's event", param="Last-Event-ID", code="invalid_value"
        )
    kind, usage, token_ids, stream_id, frame, created, prompt_tokens, completion_tokens = match.groups()
    return EventId(
        kind=kind,
        include_usage=bool(usage),
        return_token_ids=bool(token_ids),
        stream_id=stream_id,
        frame=int(frame),
        created=int(created),
        prompt_tokens=int(prompt_tokens),
        completion_tokens=None if completion_tokens is None else int(completion_tokens),
    )
