"""What each action costs others, in machine seconds: seconds of the whole machine that nobody else gets."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.core.decision import Action, BehindStream, Load
from sluiceway.core.policy_settings import PolicySettings
from sluiceway.core.states import State


@dataclass(frozen=True, slots=True)
class Outlook:
    """chance_of_return: that the client reads on before it leaves. away_s: expected time until either."""

    chance_of_return: float
    away_s: float


def costs(
    stream: BehindStream, load: Load, outlook: Outlook, pressure: float, settings: PolicySettings
) -> dict[Action, float]:
    """The actions that are possible, apart from ending the stream, and what they cost.

    HOLD is always among them. A stream that is not paused has no way back into the batch but its reader's,
    and one that holds nothing has nothing to give: there HOLD is all.
    """
    returns = min(max(outlook.chance_of_return, 0.0), 1.0)
    away_s = min(max(outlook.away_s, 0.0), settings.horizon_s)
    held = _share(stream.kv_blocks, load.kv_blocks_total)
    prefill = load.prefill_tokens_per_s or settings.assumed_prefill_tokens_per_s
    recompute = returns * stream.kv_tokens / prefill
    copy = stream.kv_blocks / load.swap_blocks_per_s if load.swap_blocks_per_s > 0 else None
    copy_in = stream.host_blocks / load.swap_blocks_per_s if load.swap_blocks_per_s > 0 else 0.0
    possible = {Action.HOLD: held * away_s * pressure}
    if stream.state is State.PAUSED:
        if _may_run_ahead(stream, load, settings):
            possible[Action.RUN_AHEAD] = _run_ahead(stream, load, held, returns, pressure)
        if copy is not None and 0 < stream.kv_blocks <= load.host_blocks_free:
            possible[Action.SWAP] = copy * (1.0 + returns)
        if stream.kv_blocks > 0:
            possible[Action.DROP] = recompute
    elif stream.state is State.SWAPPED:
        # Copying in costs the same at once or later, so it counts only against recomputing instead.
        possible[Action.HOLD] += returns * copy_in
        if stream.host_blocks > load.host_blocks_free or stream.kv_blocks > 0:
            # Host room is short: another stream like this one could not be swapped out and must recompute.
            if stream.host_blocks > load.host_blocks_free:
                possible[Action.HOLD] += pressure * stream.kv_tokens / prefill
            possible[Action.DROP] = recompute
    return possible


def _may_run_ahead(stream: BehindStream, load: Load, settings: PolicySettings) -> bool:
    return (
        0 < stream.tokens_left <= settings.run_ahead_max_tokens
        and 0 < stream.spool_bytes_left <= load.spool_free_bytes
        and load.step_s > 0
    )


def _run_ahead(stream: BehindStream, load: Load, held: float, returns: float, pressure: float) -> float:
    """Tokens for nobody if it leaves, a place that a waiting request would have used, and KV until done."""
    run_s = stream.tokens_left * load.step_s
    place = run_s / max(load.batch_streams + load.batch_free, 1)
    displaces = load.waiting > 0 and load.batch_free == 0
    return (place if displaces else (1.0 - returns) * place) + held * run_s * pressure


def _share(blocks: int, total: int) -> float:
    return blocks / total if total > 0 else 0.0
