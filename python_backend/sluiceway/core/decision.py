"""What the policy is asked about a stream that is behind, and what it answers. Policy: policy.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sluiceway.core.limits import Size
from sluiceway.core.states import State


class Action(StrEnum):
    """What to do with a stream that is behind. Exactly one at a time."""

    HOLD = "hold"  # stay as it is (KV where it lies now)
    RUN_AHEAD = "run_ahead"  # generate on into the spool: the rest is small, and KV frees at the end
    SWAP = "swap"  # copy KV to host memory
    DROP = "drop"  # free KV, keep the tokens, recompute later
    DETACH = "detach"  # let the client go with an id to come back with; generate on into the spool
    CANCEL = "cancel"  # end it with an explicit finish reason


@dataclass(frozen=True, slots=True, kw_only=True)
class BehindStream:
    """One stream that is behind: out of the batch, or done with the engine and not read (DRAINING).

    behind_s: how long it has been. silence_s: since anything was delivered. drain_bytes_per_s: over a
    sliding window. resume_bytes: how much must be delivered before it may resume (backlog above low).
    tokens_left: upper bound (max_tokens - generated). kv_blocks: on the device now; host_blocks: swapped.
    kv_tokens: prompt and answer so far, what a recompute costs. spool_bytes_left: what the rest of the
    answer would add to the spool (estimate from this stream's own bytes a token). tier: 0 is the lowest.
    """

    request_id: str
    state: State
    backlog: Size
    behind_s: float
    silence_s: float
    drain_bytes_per_s: float
    resume_bytes: int
    tokens_left: int
    kv_blocks: int
    host_blocks: int
    kv_tokens: int
    spool_bytes_left: int
    is_resumable: bool = False
    tenant: str = ""
    tier: int = 0

    @property
    def holds_kv(self) -> bool:
        """Here or on the host. One that does not can only be ended, there is nothing else to decide."""
        return self.kv_blocks > 0 or self.host_blocks > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The machine beside the stream. Rates are measured: calibrated at start-up, then tracked.

    waiting: requests that cannot be admitted now; longest_wait_s: the oldest of them. step_s: mean time of
    a step. batch_streams, batch_free: places in the batch, taken and free. swap_blocks_per_s: one way. 0 in a
    rate: unknown or not possible.
    """

    kv_blocks_total: int
    kv_blocks_free: int
    host_blocks_free: int
    batch_streams: int
    batch_free: int
    waiting: int
    longest_wait_s: float
    step_s: float
    prefill_tokens_per_s: float
    swap_blocks_per_s: float
    spool_free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One action and why. reason: one word of a closed set (a metrics label); costs: machine seconds of each
    action that was possible; run_ahead_bytes: the grant, for RUN_AHEAD.
    """

    action: Action
    reason: str
    costs: Mapping[Action, float] = field(default_factory=dict)
    run_ahead_bytes: int = 0
