"""Server-sent events as bytes, and how many of them a response has written."""

from __future__ import annotations

from dataclasses import dataclass

HEARTBEAT = b": heartbeat\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One server-sent event.

    frame: all frames up to and with this one are wholly in what was written once this event is out; None: no
    frame ends with it.
    """

    data: str
    id: str = ""
    event: str = ""
    frame: int | None = None


def encode(event: Event) -> bytes:
    """Raise ValueError if a name holds a line end, which would start another field."""
    lines = []
    for name, value in (("event", event.event), ("id", event.id)):
        if value:
            if any(end in value for end in "\r\n\0"):
                raise ValueError(f"{name}: must be one line")
            lines.append(f"{name}: {value}")
    # Each of the three line ends of the format ends a data field, so each starts a new one.
    data = event.data.replace("\r\n", "\n").replace("\r", "\n")
    lines += [f"data: {line}" for line in data.split("\n")]
    return ("\n".join(lines) + "\n\n").encode()
