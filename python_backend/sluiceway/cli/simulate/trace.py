"""Who asks for what, when, and how they read. One trace drives the simulator and ``bench policy``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request. arrival_s: from the trace's start. reader: "normal" (reads at once), "rate:BYTES_PER_S",
    "never", "stop:BYTES" (reads so many, then never again). leaves_after_s: from arrival, the client closes;
    None: it stays to the end. is_slow: any reader but "normal".
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    reader: str = "normal"
    leaves_after_s: float | None = None
    tenant: str = ""
    tier: int = 0

    @property
    def is_slow(self) -> bool:
        return self.reader != "normal"
