"""How long what is unread will last a client: watermarks in seconds of its own reading.

Those in bytes and tokens are sized for a client that reads fast. For one that takes 4 tokens a second, 256
tokens are a minute's reading: made so far ahead, they are made for nothing if it leaves, and meanwhile took a
place and KV that others wait for. The rate is that of the last seconds: a client's buffers swallow the first.
"""

from __future__ import annotations

from sluiceway.core.drain import DrainRate
from sluiceway.core.limits import CushionLimits, Size

_WINDOW_S = 3.0


class Cushion:
    """Times in seconds on the caller's clock."""

    def __init__(self, limits: CushionLimits, now: float) -> None:
        self._limits = limits
        self._drain = DrainRate(now, window_s=_WINDOW_S, buckets=3)
        self.is_ample = False

    def observe(self, delivered: Size, backlog: Size, now: float) -> None:
        """Take the levels in, whenever what is delivered has changed, or whether anything is unread."""
        self._drain.observe(delivered, backlog, now)

    def update(self, unread_tokens: int, silence_s: float, now: float) -> bool:
        """Whether the client has plenty. silence_s: since anything was delivered, with something to deliver."""
        limits = self._limits
        least = limits.min_tokens // 2 if self.is_ample else limits.min_tokens
        if unread_tokens < least:
            self.is_ample = False
        elif silence_s >= limits.quiet_s:
            self.is_ample = True
        else:
            enough_s = limits.low_s if self.is_ample else limits.high_s
            is_known = self.is_ample or self._drain.is_known(now)
            self.is_ample = is_known and unread_tokens >= enough_s * self._drain.tokens_per_s(now)
        return self.is_ample
