"""The engine of a simulation: the real scheduler and block pools, with a price for a step instead of a GPU."""

from __future__ import annotations

import math

from sluiceway.cli.simulate.arms import Arm
from sluiceway.cli.simulate.profile import Profile
from sluiceway.core.decision import Load
from sluiceway.engine.calibration import Calibration
from sluiceway.engine.kv_pool import BlockPool
from sluiceway.engine.load import engine_load, policy_load
from sluiceway.engine.prices import Prices
from sluiceway.engine.protocol import EngineRequest
from sluiceway.engine.scheduler import Scheduler
from sluiceway.engine.sequence import Sequence

_NO_PROMPT = (0,)  # a request's own copy of its prompt is never read by the scheduler


class Machine:
    """Requests are the scheduler's, by id. step_s: seconds that the last step took, 0 if it did nothing."""

    def __init__(self, profile: Profile, arm: Arm) -> None:
        self.scheduler = Scheduler(
            BlockPool(profile.kv_blocks),
            block_tokens=profile.kv_block_tokens,
            max_batch_streams=profile.max_batch_streams,
            prefill_chunk_tokens=profile.prefill_chunk_tokens,
            host_blocks=profile.host_blocks,
            admission_free_share=profile.admission_free_share,
            reclaim=arm.reclaim,
            buffer_aware=arm.buffer_aware,
        )
        # As an engine does it: a block is copied out and back, or its tokens are computed again.
        self.scheduler.set_prices(
            Prices.for_pool(
                profile.kv_blocks,
                profile.kv_block_tokens,
                prefill_token_s=profile.per_prefill_token_s,
                swapped_block_s=profile.per_swapped_block_s if profile.host_blocks else math.inf,
            )
        )
        self._cost = profile.cost
        self._rates = Calibration(
            step_s=profile.base_s,
            prefill_tokens_per_s=_rate(profile.per_prefill_token_s),
            swap_blocks_per_s=_rate(profile.per_swapped_block_s),
        )
        self.generated_tokens = 0
        self.steps = 0
        self.step_s = 0.0

    def submit(self, request_id: str, arrival: int, prompt_tokens: int) -> Sequence:
        """Raises ValueError for a prompt that never fits."""
        request = EngineRequest(request_id=request_id, prompt_token_ids=_NO_PROMPT)
        sequence = Sequence(request=request, arrival=arrival, token_ids=[0] * prompt_tokens)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> list[Sequence]:
        """Who got a token; empty also if nothing could be computed."""
        plan = self.scheduler.plan()
        if not plan:
            self.step_s = 0.0
            return []
        decodes, prefill_tokens = len(plan.decode), plan.prefill_tokens
        computing_s = self._cost.of(decodes=decodes, prefill_tokens=prefill_tokens)
        self.step_s = computing_s + self._cost.of(swapped_blocks=plan.swapped_blocks)
        # Prefill and copy rates are known exactly; only the mean step has to be followed.
        self._rates.observe_step(computing_s, decodes=decodes + len(plan.prefill), prefill_tokens=0)
        sampled = plan.sampled
        self.scheduler.commit(plan)
        for sequence in sampled:
            sequence.append(0)
        self.steps += 1
        self.generated_tokens += len(sampled)
        return sampled

    def load(self, longest_wait_s: float, spool_free_bytes: int) -> Load:
        """What the driver would know after the last step."""
        load = engine_load(self.scheduler, self._rates)
        return policy_load(load, longest_wait_s=longest_wait_s, spool_free_bytes=spool_free_bytes)


def _rate(unit_s: float) -> float:
    """0, for unknown, where it costs nothing: the policy then reckons with what it assumes."""
    return 1 / unit_s if unit_s else 0.0
