"""Events that the table takes, but not after what this stream has seen and handed out."""

from __future__ import annotations

from sluiceway.core.decision import Action
from sluiceway.core.ending import Ending
from sluiceway.core.events import Decided, EngineFinished, Event, FrameReplayed, FrameSent, Progress, TokensProduced
from sluiceway.core.outlet import Outlet
from sluiceway.core.transitions import IllegalEventError


class ControlRefused(Exception):  # noqa: N818 - an answer, not a fault
    """A client said of its stream what cannot be true. The text goes to the client and names the input."""


def acknowledged_frames(sequence: int, outlet: Outlet) -> int:
    """How many of the outlet's frames an ack of frame ``sequence`` confirms.

    Raises ControlRefused for a frame that was not handed out, or if a later one is acknowledged already.
    """
    levels, frames = outlet.levels, outlet.frames_up_to(sequence)
    if not 0 < frames <= levels.framed.frames:
        raise ControlRefused(f"ack_frame: frame {sequence} was never sent; {outlet.sequence_range}")
    if frames < levels.consumed.frames:
        raise ControlRefused(f"ack_frame: {sequence} goes backwards; more was acknowledged before")
    return frames


def refuse_by_history(event: Event, outlet: Outlet, ending: Ending) -> None:
    """Raises IllegalEventError for an event that cannot be true."""
    framed = outlet.levels.framed.frames
    match event:
        case TokensProduced() | EngineFinished() | FrameReplayed() if ending.is_engine_done:
            raise IllegalEventError(f"{type(event).__name__} after the engine's end")
        case FrameReplayed(frame) if not outlet.is_finished and frame.sequence != outlet.next_sequence:
            raise IllegalEventError(f"frame {frame.sequence} replayed, {outlet.next_sequence} is next")
        case FrameSent(sequence) if not 0 < outlet.frames_up_to(sequence) <= framed:
            raise IllegalEventError(f"frame {sequence} sent, {framed} were handed out")
        case Progress(forwarded, delivered, consumed) if max(forwarded, delivered, consumed) > framed:
            raise IllegalEventError(
                f"{forwarded} forwarded, {delivered} delivered, {consumed} consumed, {framed} were handed out"
            )
        case Decided(decision) if decision.action is Action.DETACH and not ending.is_resumable:
            raise IllegalEventError("detach of a stream that nobody can come back to")
