"""How much a client needs its next token: 1.0, or less by powers of two with plenty unread.

The measure is the cushion: the unread tokens over the rate at which the client takes them, in seconds.
A reader that keeps up has a cushion of the delivery signal's delay (about 0.15 s), far below ``full_s``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSettings:
    """full_s: below this cushion a client has full weight; each doubling above it halves the weight.
    lowest_exponent: of two, so 4 is 1/16. min_unread_tokens: fewer unread tokens are no cushion, whatever
    the rate (a quarter of the low watermark). hysteresis: the weight rises again only once the cushion is
    smaller by this factor than where it fell. Raises ValueError for values that contradict that.
    """

    full_s: float = 2.0
    lowest_exponent: int = 4
    min_unread_tokens: int = 16
    hysteresis: float = 1.5

    def __post_init__(self) -> None:
        if self.full_s <= 0:
            raise ValueError(f"full_s is {self.full_s}, must be above 0")
        if not 0 <= self.lowest_exponent <= 10:
            raise ValueError(f"lowest_exponent is {self.lowest_exponent}, must be 0 to 10")
        if self.min_unread_tokens < 0:
            raise ValueError(f"min_unread_tokens is {self.min_unread_tokens}, must be 0 or more")
        if not 1 <= self.hysteresis <= 2:
            raise ValueError(f"hysteresis is {self.hysteresis}, must be 1 to 2")


DEFAULT = WeightSettings()


def weight(unread_tokens: int, drain_tokens_per_s: float | None, settings: WeightSettings = DEFAULT) -> float:
    """Without memory. drain_tokens_per_s None: not known (yet), which counts as a reader that keeps up."""
    return 0.5 ** _exponent(unread_tokens, drain_tokens_per_s, settings, 1.0)


class Weight:
    """One stream's weight, with hysteresis: a steady client's never goes back and forth."""

    def __init__(self, settings: WeightSettings = DEFAULT) -> None:
        self._settings = settings
        self._exponent = 0

    @property
    def value(self) -> float:
        return 0.5**self._exponent

    def update(self, unread_tokens: int, drain_tokens_per_s: float | None) -> bool:
        """Take what is unread and how fast it drains (None: unknown); answer whether the weight changed.

        At a steady cushion it changes at most once.
        """
        before = self._exponent
        down = _exponent(unread_tokens, drain_tokens_per_s, self._settings, 1.0)
        up = _exponent(unread_tokens, drain_tokens_per_s, self._settings, self._settings.hysteresis)
        # `up` sees a larger cushion, so up >= down: between the two, whatever it was stays.
        self._exponent = min(max(before, down), up)
        return self._exponent != before


def _exponent(unread_tokens: int, drain_tokens_per_s: float | None, settings: WeightSettings, factor: float) -> int:
    unread = factor * unread_tokens
    if drain_tokens_per_s is None or unread <= settings.min_unread_tokens:
        return 0
    if drain_tokens_per_s <= 0:
        return settings.lowest_exponent
    ratio = unread / drain_tokens_per_s / settings.full_s
    if ratio < 1:
        return 0
    return settings.lowest_exponent if math.isinf(ratio) else min(int(math.log2(ratio)) + 1, settings.lowest_exponent)
