"""Find stop strings in a stream of bytes and hold back no more than a possible beginning of one."""

from __future__ import annotations

from collections.abc import Iterable


class StopMatcher:
    """Works on UTF-8 bytes, so a stop string is found however tokens cut it."""

    def __init__(self, stops: Iterable[str]) -> None:
        """An empty stop string is a ValueError: it would match everywhere."""
        self._stops = tuple(stop.encode() for stop in stops)
        if not all(self._stops):
            raise ValueError("stop holds an empty string")
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """What may be shown now, and whether a stop string was found (the text then ends before it).

        Of several matches the one complete first counts (the longest of those that end together): the
        only choice that does not depend on how the text was cut into calls.
        """
        if not self._stops:
            return data, False
        text = self._held + data
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = b""
            return text[: min(found)[1]], True
        keep = max(self._overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> bytes:
        """What was held back, for a text that ends without a stop string."""
        held, self._held = self._held, b""
        return held

    @staticmethod
    def _overlap(text: bytes, stop: bytes) -> int:
        """Length of the longest end of ``text`` that is a beginning of ``stop``."""
        for length in range(min(len(text), len(stop) - 1), 0, -1):
            if text.endswith(stop[:length]):
                return length
        return 0
