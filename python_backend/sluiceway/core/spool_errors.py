"""Why a client cannot have what it came back for. ``code`` is the first word of the error that it gets."""

from __future__ import annotations

from typing import ClassVar


class ResumeRefused(Exception):  # noqa: N818 - an answer, not a fault
    """One of the errors below. Its text names no content and no other tenant."""

    code: ClassVar[str]


class StreamUnknown(ResumeRefused):
    """No stream has, or lately had, that id."""

    code = "stream_unknown"


class StreamForeign(ResumeRefused):
    """The stream belongs to another tenant."""

    code = "stream_foreign"


class StreamExpired(ResumeRefused):
    """The stream was kept and is not any more."""

    code = "stream_expired"


class FrameExpired(ResumeRefused):
    """The stream is kept, the frame asked for no longer is."""

    code = "frame_expired"


class FrameUnknown(ResumeRefused):
    """A frame beyond the next one: nobody can have seen the one before it."""

    code = "frame_unknown"


class StreamComplete(ResumeRefused):
    """The frame asked for comes after the last: there is nothing more to get."""

    code = "stream_complete"


class SpoolFull(Exception):  # noqa: N818 - an answer, not a fault
    """No room. ``limit`` names the setting."""

    def __init__(self, limit: str, wanted: int, maximum: int) -> None:
        super().__init__(f"spool.{limit}: {wanted} bytes would be in use, {maximum} are allowed")
        self.limit = limit
