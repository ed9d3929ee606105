"""A machine small enough to know what it will do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sluiceway.cli.simulate.arms import ARMS
from sluiceway.cli.simulate.figures import Figures, figures
from sluiceway.cli.simulate.profile import Profile
from sluiceway.cli.simulate.simulation import Result, Simulation
from sluiceway.cli.simulate.trace import Arrival
from sluiceway.core.limits import Limits

SMALL = Profile(
    name="small",
    base_s=0.0625,  # sixteenths: sums of steps are exact
    per_stream_s=0.0,
    per_prefill_token_s=0.0,
    per_swapped_block_s=0.001,
    kv_blocks=1024,
    max_batch_streams=8,
    prefill_chunk_tokens=256,
    client_buffer_bytes=4096,
    client_lump_bytes=1024,
    per_s=1.0,
    ttft_s=2.0,
    tpot_s=0.125,
)


def machine(**changes: Any) -> Profile:
    return replace(SMALL, **changes)


def arrival(at: float = 0.0, tokens: int = 8, reader: str = "normal", **others: Any) -> Arrival:
    return Arrival(arrival_s=at, prompt_tokens=16, output_tokens=tokens, reader=reader, **others)


def run(arm: str, trace: list[Arrival], profile: Profile = SMALL, limits: Limits | None = None) -> Result:
    return Simulation(ARMS[arm], profile, sorted(trace, key=lambda each: each.arrival_s), limits).run()


def seen(result: Result, profile: Profile = SMALL) -> Figures:
    return figures(result.outcomes, profile.targets, ended_at=result.ended_at, generated=result.generated)
