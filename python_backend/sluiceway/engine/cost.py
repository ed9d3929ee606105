"""What a step costs in seconds, from its plan. The scripted engine sleeps it, the simulator adds it up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sluiceway.engine.step_plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds of one step, linear in its work. ValueError for a negative or endless one.

    base_s: any step that computes (one forward pass, weights read once). per_stream_s: each decoding
    sequence. per_prefill_token_s: each prompt or recomputed token. per_swapped_block_s: each KV block
    copied, either way, as far as it holds the step up (a device that copies beside its work: near 0).
    """

    base_s: float = 0.0
    per_stream_s: float = 0.0
    per_prefill_token_s: float = 0.0
    per_swapped_block_s: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}, must be 0 or more seconds")

    def seconds(self, plan: StepPlan) -> float:
        return self.of(decodes=len(plan.decode), prefill_tokens=plan.prefill_tokens, swapped_blocks=plan.swapped_blocks)

    def of(self, *, decodes: int = 0, prefill_tokens: int = 0, swapped_blocks: int = 0) -> float:
        """The same from counts. A step that only copies has no forward pass, so no base."""
        return (
            (self.base_s if decodes or prefill_tokens else 0.0)
            + self.per_stream_s * decodes
            + self.per_prefill_token_s * prefill_tokens
            + self.per_swapped_block_s * swapped_blocks
        )
