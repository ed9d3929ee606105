"""Since when a condition holds, and when it has held for too long."""

from __future__ import annotations


class Span:
    """``timeout_s`` None: it may hold for ever. Times in seconds on the caller's clock."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self._timeout_s = timeout_s
        self._since: float | None = None

    @property
    def deadline(self) -> float | None:
        """When the condition will have held for too long; None while it does not hold, or may."""
        if self._since is None or self._timeout_s is None:
            return None
        return self._since + self._timeout_s

    def is_over(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline

    def length(self, now: float) -> float:
        """For how long it has held; 0 while it does not."""
        return 0.0 if self._since is None else now - self._since

    def start(self, now: float) -> None:
        """From now on, if it does not hold already."""
        if self._since is None:
            self._since = now

    def follow(self, holds: bool, now: float) -> None:
        """Say whether it holds now: its time runs from the first True on, and stops at False."""
        if not holds:
            self._since = None
        elif self._since is None:
            self._since = now

    def stop(self) -> None:
        self._since = None
