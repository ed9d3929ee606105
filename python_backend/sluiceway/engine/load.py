"""What an engine says of itself after a step, and what the policy is told of it; engine and simulator alike."""

from __future__ import annotations

from sluiceway.core.decision import Load
from sluiceway.engine.calibration import Calibration
from sluiceway.engine.protocol import EngineLoad
from sluiceway.engine.scheduler import Scheduler


def engine_load(scheduler: Scheduler, rates: Calibration) -> EngineLoad:
    return EngineLoad(
        kv_blocks_total=scheduler.pool.total,
        kv_blocks_free=scheduler.pool.free_count,
        host_blocks_free=scheduler.host_blocks_free,
        batch_streams=scheduler.batch_streams,
        batch_free=scheduler.batch_free,
        waiting=scheduler.waiting,
        oldest_waiting=scheduler.oldest_waiting,
        step_s=rates.step_s,
        prefill_tokens_per_s=rates.prefill_tokens_per_s,
        swap_blocks_per_s=rates.swap_blocks_per_s if scheduler.host_blocks_total else 0.0,
    )


def policy_load(load: EngineLoad, *, longest_wait_s: float, spool_free_bytes: int) -> Load:
    """longest_wait_s: of load.oldest_waiting, which has no clock of its own; 0 without one."""
    return Load(
        kv_blocks_total=load.kv_blocks_total,
        kv_blocks_free=load.kv_blocks_free,
        host_blocks_free=load.host_blocks_free,
        batch_streams=load.batch_streams,
        batch_free=load.batch_free,
        waiting=load.waiting,
        longest_wait_s=longest_wait_s,
        step_s=load.step_s,
        prefill_tokens_per_s=load.prefill_tokens_per_s,
        swap_blocks_per_s=load.swap_blocks_per_s,
        spool_free_bytes=spool_free_bytes,
    )
