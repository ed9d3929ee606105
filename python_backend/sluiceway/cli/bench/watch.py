"""The backend's view of one stream over time, and when each level began to show that its reader had stopped."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from sluiceway.core.states import State

FLOW = ("produced", "sent", "forwarded", "delivered")
LEVELS = ("delivered", "forwarded", "sent", "paused", "produced")
STILL_S = 1.0  # a level has stopped when it stood still for at least this long, to the end of the watch


@dataclass(slots=True)
class Sample:
    """at: seconds since the reader stopped."""

    at: float
    state: str
    tokens: dict[str, int]
    bytes: dict[str, int]


@dataclass(slots=True, kw_only=True)
class Watch:
    """``read_*``: what the client had taken when it stopped, bytes as on the wire (DATA)."""

    stopped_at: float
    read_tokens: int
    read_bytes: int
    samples: list[Sample] = field(default_factory=list)

    def add(self, statistics: dict[str, Any], *, client_id: str) -> None:
        """Note the stream of ``client_id`` as /statistics shows it; nothing if it is gone."""
        at = statistics.get("now", time.monotonic()) - self.stopped_at
        for stream in statistics["streams"]:
            if stream["client_id"] == client_id:
                self.samples.append(
                    Sample(
                        at,
                        stream["state"],
                        {level: stream[level]["tokens"] for level in FLOW},
                        {level: stream[level]["bytes"] for level in FLOW},
                    )
                )

    def stopped(self, level: str) -> Sample | None:
        """The first sample since which ``level`` stood still (for "paused": the first paused one)."""
        if level == "paused":
            return next((each for each in self.samples if State(each.state).is_out_of_batch), None)
        if not self.samples:
            return None
        last = self.samples[-1]
        still = next(each for each in self.samples if each.tokens[level] == last.tokens[level])
        return still if last.at - still.at >= STILL_S else None

    def figures(self) -> dict[str, Any]:
        return {
            "read_tokens": self.read_tokens,
            "read_bytes": self.read_bytes,
            "levels": {level: self._level(level) for level in LEVELS},
        }

    def _level(self, level: str) -> dict[str, float | int | None]:
        seen = self.stopped(level)
        if seen is None:
            return {"after_s": None, "ahead_tokens": None, "ahead_bytes": None}
        counted = "produced" if level == "paused" else level
        return {
            "after_s": round(max(0.0, seen.at), 3),
            "ahead_tokens": seen.tokens[counted] - self.read_tokens,
            "ahead_bytes": seen.bytes[counted] - self.read_bytes,
        }
