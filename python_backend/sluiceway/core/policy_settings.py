"""What an operator can set about the policy. The model behind it: docs/flow-control.md."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Raises ValueError, naming the field, for values that contradict themselves. Times in seconds.

    grace_s, max_silence_s: one value a tier, the lowest tier first; a higher tier than listed has the last.
    grace_s: behind for so long, and slower than min_drain_bytes_per_s over the drain window: it ends. As
    long as that window (drain.py), or the rate would be judged on less than it.
    max_silence_s: nothing at all delivered for so long: it ends. Below the sender's own limit (60 s), and
    above buffer / rate of the slowest welcome reader: 26 s at 128 KiB and 5 KB/s.
    min_drain_bytes_per_s: a steady reader at twice this is never ended (a window may show half of a lumpy
    reader's rate). 64 B/s is below reading aloud: a token a second costs more on the wire.
    min_dwell_s: no second change of mind about a stream within it, except to end it.
    margin: an action must cost at most this share of holding. min_gain_s: and save so many machine seconds.
    run_ahead_max_tokens: what counts as "the rest is small".
    low_free_share: KV is scarce below this share of free blocks. wait_half_s: a wait that makes it half
    certain that blocks are wanted. idle_demand: how wanted scarce blocks are with nobody waiting yet.
    pressure_decay_s: pressure rises at once and falls with this time constant while anybody wants anything.
    horizon_s: nobody is expected to stay away for longer than this from now.
    release_kv_after_s: mode "drop" alone.
    assumed_prefill_tokens_per_s: until the engine has measured its own.
    """

    grace_s: tuple[float, ...] = (60.0,)
    max_silence_s: tuple[float, ...] = (50.0,)
    min_drain_bytes_per_s: float = 64.0
    min_dwell_s: float = 0.5
    margin: float = 0.8
    min_gain_s: float = 0.0001
    run_ahead_max_tokens: int = 256
    low_free_share: float = 0.2
    wait_half_s: float = 0.25
    idle_demand: float = 0.05
    pressure_decay_s: float = 2.0
    horizon_s: float = 60.0
    release_kv_after_s: float = 2.0
    assumed_prefill_tokens_per_s: float = 1000.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, tuple):
                if not value or any(one <= 0 for one in value) or list(value) != sorted(value):
                    raise ValueError(f"{each.name} is {value}, must be positive and not fall from tier to tier")
            elif value < 0:
                raise ValueError(f"{each.name} is {value}, must be 0 or more")
        for name in ("margin", "low_free_share", "idle_demand"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at most 1")
        for name in ("wait_half_s", "pressure_decay_s", "horizon_s", "assumed_prefill_tokens_per_s"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} is 0, must be above 0")

    def grace(self, tier: int) -> float:
        return self.grace_s[min(max(tier, 0), len(self.grace_s) - 1)]

    def max_silence(self, tier: int) -> float:
        return self.max_silence_s[min(max(tier, 0), len(self.max_silence_s) - 1)]
