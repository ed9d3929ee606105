"""The engine of a simulation: the real scheduler and block pool, with a cost for a step instead of a GPU."""

from __future__ import annotations

from sluiceway.cli.simulate.profile import Profile
from sluiceway.engine.kv_pool import BlockPool
from sluiceway.engine.protocol import EngineRequest
from sluiceway.engine.scheduler import Scheduler
from sluiceway.engine.sequence import Sequence

_NO_PROMPT = (0,)  # a request's own copy of its prompt is never read by the scheduler


class Machine:
    """Requests by id; unknown ids are ignored, as by an Engine."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.scheduler = Scheduler(
            BlockPool(profile.kv_blocks),
            block_tokens=profile.kv_block_tokens,
            max_batch_streams=profile.max_batch_streams,
            prefill_chunk_tokens=profile.prefill_chunk_tokens,
        )
        self.generated_tokens = 0
        self.steps = 0
        self.step_s = profile.base_s  # of the last one

    def submit(self, request_id: str, arrival: int, prompt_tokens: int) -> Sequence:
        """Raises ValueError for a prompt that never fits."""
        request = EngineRequest(request_id=request_id, prompt_token_ids=_NO_PROMPT)
        sequence = Sequence(request=request, arrival=arrival, token_ids=[0] * prompt_tokens)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> list[Sequence]:
        """Who got a token; empty also if nothing could be computed (step_s is then 0)."""
        profile = self._profile
        plan = self.scheduler.plan()
        if not plan:
            self.step_s = 0.0
            return []
        sampled = plan.sampled
        prefill_tokens = sum(chunk.length for chunk in plan.prefill)
        streams = len(plan.decode) + len(plan.prefill)
        self.step_s = profile.base_s + streams * profile.per_stream_s + prefill_tokens * profile.per_prefill_token_s
        self.scheduler.commit(plan)
        for sequence in sampled:
            sequence.append(0)
        self.steps += 1
        self.generated_tokens += len(sampled)
        return sampled
