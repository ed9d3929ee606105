"""Refusals, in words for whoever has to act on them."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """The codes that a Triton 24.10 model can answer with and that we use."""

    INVALID_ARG = "INVALID_ARG"  # the request is wrong: sending it again will not help
    UNAVAILABLE = "UNAVAILABLE"  # we are full, draining or broken: ask again later or elsewhere
    INTERNAL = "INTERNAL"  # our mistake


class RequestError(Exception):
    """A request is refused. The text goes to the client: field, kind of value and limit; never content."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_ARG) -> None:
        super().__init__(message)
        self.code = code


class ConfigError(ValueError):
    """The configuration file cannot be used. The text names file, line, field and limit."""


def kind(value: object) -> str:
    """What sort of value this is; numbers in full, never the content of a text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value) if isinstance(value, float) or abs(value) < 10**20 else "an integer of over 20 digits"
    if isinstance(value, str):
        return f"a string of {len(value)} characters"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    return f"a {type(value).__name__}"
