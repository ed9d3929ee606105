"""What it costs others that a sequence gives its KV up and wants it back later."""

from __future__ import annotations

import math
from dataclasses import dataclass

# A displacement must spare others this many times what it costs them: a client's rate is an estimate, and
# whoever gave way comes back as often as it runs dry. In simulation 1 lost throughput, 4 and 8 were alike.
_LEAST_GAIN = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Seconds for the KV of the whole pool. recompute_s: to compute it anew; swap_s: to copy it to the host and
    back (inf: not possible).

    Both price and gain are in proportion to the blocks, so the pool's price is also the time for which a
    sequence must do without its KV before giving it up has paid: share x time gained = share x price.
    """

    recompute_s: float = 0.0
    swap_s: float = math.inf

    @classmethod
    def for_pool(cls, blocks: int, block_tokens: int, *, prefill_token_s: float, swapped_block_s: float) -> Prices:
        """From what one token's prefill and one block's copy (one way) hold the machine up; inf: cannot be copied."""
        return cls(recompute_s=blocks * block_tokens * prefill_token_s, swap_s=2 * blocks * swapped_block_s)

    @property
    def prefers_swap(self) -> bool:
        return self.swap_s < self.recompute_s

    def pays(self, weight: float, *, on_host: bool) -> bool:
        """Whether one of this weight may be displaced for its blocks; on_host: they would be copied.

        Weight w below 1 says that its client has at least 1 / w seconds unread (core/weight.py).
        """
        return 1 / weight >= _LEAST_GAIN * (self.swap_s if on_host else self.recompute_s)
