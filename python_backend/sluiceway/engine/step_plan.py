"""What one step computes."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluiceway.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prefill positions ``start`` to ``start + length``; ``is_last``: the next token is sampled from it."""

    sequence: Sequence
    start: int
    length: int
    is_last: bool


@dataclass(slots=True)
class StepPlan:
    """One step. Prefill lengths sum to at most the chunk budget; a sequence occurs once."""

    prefill: list[Chunk] = field(default_factory=list)
    decode: list[Sequence] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.prefill or self.decode)

    @property
    def sampled(self) -> list[Sequence]:
        """Sequences that get a new token this step."""
        return self.decode + [chunk.sequence for chunk in self.prefill if chunk.is_last]
