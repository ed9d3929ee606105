"""Tool calls in an answer's text, as Hermes and Qwen models write them: ``<tool_call>{"name": ...}</tool_call>``.

What comes out depends on the text alone, not on where it was cut into pieces.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_CALL_CHARACTERS = 65_536


@dataclass(frozen=True, slots=True)
class Call:
    """arguments: JSON in a string."""

    name: str
    arguments: str


class ToolCallParser:
    """Feed it the pieces of one answer. A call comes out whole, once its end is there; whatever is no call is text.

    White space right after a call is dropped: models put calls on lines of their own. Holds at most one call
    (MAX_CALL_CHARACTERS) or the beginning of a tag.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_after_call = False

    def feed(self, text: str) -> list[str | Call]:
        """Texts and calls that are certain now, in order."""
        self._held += text
        parts: list[str | Call] = []
        while self._held:
            start = self._held.find(OPEN)
            if start > 0 or (start < 0 and (start := len(self._held) - _overlap(self._held, OPEN)) > 0):
                self._say(parts, self._take(start))
                continue
            if not self._held.startswith(OPEN):
                break
            end = self._held.find(CLOSE, len(OPEN), len(OPEN) + MAX_CALL_CHARACTERS + len(CLOSE))
            if end >= 0:
                self._call(parts, self._take(end + len(CLOSE)))
            elif len(self._held) >= len(OPEN) + MAX_CALL_CHARACTERS + len(CLOSE):
                self._say(parts, self._take(len(OPEN)))
            else:
                break
        return parts

    def finish(self) -> list[str | Call]:
        """The answer is over: a call that has no end is text."""
        parts: list[str | Call] = []
        self._say(parts, self._take(len(self._held)))
        return parts

    def _take(self, size: int) -> str:
        taken, self._held = self._held[:size], self._held[size:]
        return taken

    def _say(self, parts: list[str | Call], text: str) -> None:
        if self._is_after_call:
            text = text.lstrip()
            self._is_after_call = not text
        if text:
            parts.append(text)

    def _call(self, parts: list[str | Call], text: str) -> None:
        call = _parse(text[len(OPEN) : -len(CLOSE)])
        if call is None:
            self._say(parts, text)
            return
        self._is_after_call = True
        parts.append(call)


def _overlap(text: str, tag: str) -> int:
    """Length of the longest beginning of ``tag``, not all of it, that ``text`` ends with."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


def _parse(body: str) -> Call | None:
    try:
        value = json.loads(body)
        if not isinstance(value, dict):
            return None
        name, arguments = value.get("name"), value.get("arguments", {})
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if not (isinstance(name, str) and name and isinstance(arguments, str)):
            return None
        (name + arguments).encode()  # half of a surrogate pair, written as \\ud83d, could not be sent
    except (ValueError, RecursionError):
        return None
    return Call(name, arguments)
