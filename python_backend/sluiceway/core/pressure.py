"""How likely it is that somebody wants the KV blocks of a stream that does not use them: 0 to 1."""

from __future__ import annotations

import math

from sluiceway.core.decision import Load
from sluiceway.core.policy_settings import PolicySettings


def pressure(load: Load, settings: PolicySettings) -> float:
    """Scarcity times demand.

    Scarcity is 1 when requests wait although the batch has room (then only KV can be missing), else it
    rises from 0 at low_free_share of free blocks to 1 at none. Demand rises with the number of waiting
    requests and with the longest wait; each alone can bring it near 1.
    """
    if load.kv_blocks_total <= 0:
        return 0.0
    if load.waiting > 0 and load.batch_free > 0:
        scarcity = 1.0
    else:
        free_share = load.kv_blocks_free / load.kv_blocks_total
        low = settings.low_free_share
        scarcity = min(max(1.0 - free_share / low, 0.0), 1.0) if low > 0 else float(load.kv_blocks_free <= 0)
    if load.waiting <= 0:
        return scarcity * settings.idle_demand
    wait_s = max(load.longest_wait_s, 0.0)
    unwanted = (
        (1.0 - settings.idle_demand) / (1 + load.waiting) * settings.wait_half_s / (wait_s + settings.wait_half_s)
    )
    return scarcity * (1.0 - unwanted)


class PeakPressure:
    """Rises at once, falls slowly, so that the answer to a steady crowd does not change with every arrival.

    But when nobody wants anything now it is 0: what was reclaimed on account of the past would help nobody.
    """

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings
        self._value = 0.0
        self._at = -math.inf

    def update(self, load: Load, now: float) -> float:
        faded = self._value * math.exp(-max(now - self._at, 0.0) / self._settings.pressure_decay_s)
        present = pressure(load, self._settings)
        self._value = max(present, faded)
        self._at = max(now, self._at)
        return self._value if present > 0 else 0.0
