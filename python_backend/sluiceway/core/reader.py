"""What a stream's machine knows of its client: how fast it reads, for how long it is behind or silent."""

from __future__ import annotations

from sluiceway.core.cushion import Cushion
from sluiceway.core.drain import DrainRate
from sluiceway.core.limits import CushionLimits, Size
from sluiceway.core.span import Span
from sluiceway.core.weight import DEFAULT, Weight, WeightSettings

_PLENTY = 2**62  # tokens


class Reader:
    """Times in seconds on the caller's clock."""

    def __init__(self, now: float, cushion: CushionLimits | None, settings: WeightSettings = DEFAULT) -> None:
        self._drain = DrainRate(now)
        self._cushion = None if cushion is None else Cushion(cushion, now)
        self._weight = Weight(settings)
        self._min_unread_tokens = settings.min_unread_tokens
        self._silence = Span()
        self._behind = Span()
        self._delivered = Size.ZERO
        self._is_busy = False

    @property
    def weight(self) -> float:
        """How much it needs the next token; see weight.py."""
        return self._weight.value

    def observe(self, delivered: Size, backlog: Size, now: float) -> None:
        """Take the levels in, after every event that may have changed them."""
        is_busy = backlog != Size.ZERO
        if is_busy is self._is_busy and delivered == self._delivered:
            return  # one more token in a backlog: most calls are of this kind
        self._drain.observe(delivered, backlog, now)
        if self._cushion is not None:
            self._cushion.observe(delivered, backlog, now)
        self._silence.stop()
        if is_busy:
            self._silence.start(now)
        self._delivered, self._is_busy = delivered, is_busy

    def has_plenty(self, backlog: Size, now: float) -> bool:
        """Whether what is unread will last it for a while (cushion.py). Means nothing without a signal."""
        return self._cushion is not None and self._cushion.update(backlog.tokens, self.silence_s(now), now)

    def weigh(self, backlog: Size, *, has_signal: bool, now: float) -> bool:
        """Answer whether the weight changed. Without a signal the backlog says nothing of the client."""
        if backlog.tokens <= self._min_unread_tokens and self._weight.value == 1.0:
            return False
        is_known = has_signal and self._drain.is_known(now)
        return self._weight.update(backlog.tokens, self._drain.tokens_per_s(now) if is_known else None)

    def leave(self) -> bool:
        """Nobody waits for the next token any more; answer whether the weight changed."""
        return self._weight.update(_PLENTY, 0.0)

    def follow_behind(self, is_behind: bool, now: float) -> None:
        self._behind.follow(is_behind, now)

    def behind_s(self, now: float) -> float:
        """Since it fell behind; 0 while it is not."""
        return self._behind.length(now)

    def silence_s(self, now: float) -> float:
        """Since anything was delivered, or since there has been something to deliver; 0 while there is nothing."""
        return self._silence.length(now)

    def drain_bytes_per_s(self, now: float) -> float:
        return self._drain.bytes_per_s(now)
