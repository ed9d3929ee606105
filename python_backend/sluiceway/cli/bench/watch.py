"""The backend's view of one stream over time, and when each level began to show that its reader had stopped."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from sluiceway.core.states import State

FLOW = ("produced", "sent", "forwarded", "delivered", "with_client")
LEVELS = ("with_client", "delivered", "forwarded", "sent", "paused", "produced")
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

    def add(self, statistics: dict[str, Any]) -> None:
        """Note the stack's only stream as /statistics shows it; nothing if it is gone."""
        at = statistics.get("now", time.monotonic()) - self.stopped_at
        for stream in statistics["streams"]:
            # A client that acknowledges has what it acknowledged, any other what was delivered.
            taken = stream["consumed"] if stream["consumed"]["tokens"] else stream["delivered"]
            levels = stream | {"with_client": taken}
            self.samples.append(
                Sample(
                    at,
                    stream["state"],
                    {level: levels[level]["tokens"] for level in FLOW},
                    {level: levels[level]["bytes"] for level in FLOW},
                )
            )

    def hidden_bytes(self) -> float:
        """Most that counted as with the client and was not read: what nobody can see of a reader that stopped.

        NaN without a sample.
        """
        return self._beyond("with_client")

    def ran_ahead_bytes(self) -> float:
        """Most that was sent and not read, wherever it waits."""
        return self._beyond("sent")

    def _beyond(self, level: str) -> float:
        most = max((each.tokens[level] for each in self.samples), default=None)
        return math.nan if most is None else self._bytes_of(max(0, most - self.read_tokens))

    def _bytes_of(self, tokens: int) -> float:
        """As on the client's wire; where that was not counted, as on ours."""
        if self.read_bytes:
            return tokens * self.read_bytes / max(1, self.read_tokens)
        last = self.samples[-1]
        return tokens * last.bytes["sent"] / max(1, last.tokens["sent"])

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
            "hidden_kib": round(self.hidden_bytes() / 1024, 2),
            "ran_ahead_kib": round(self.ran_ahead_bytes() / 1024, 2),
            "levels": {level: self._level(level) for level in LEVELS},
        }

    def _level(self, level: str) -> dict[str, float | int | None]:
        seen = self.stopped(level)
        if seen is None:
            return {"after_s": None, "ahead_tokens": None, "ahead_bytes": None}
        counted = "produced" if level == "paused" else level
        ahead_tokens = seen.tokens[counted] - self.read_tokens
        return {
            "after_s": round(max(0.0, seen.at), 3),
            "ahead_tokens": ahead_tokens,
            "ahead_bytes": round(self._bytes_of(ahead_tokens)),
        }
