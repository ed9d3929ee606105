"""Events that the table takes, but not after what this stream has seen and handed out."""

from __future__ import annotations

from sluiceway.core.decision import Action
from sluiceway.core.ending import Ending
from sluiceway.core.events import Decided, EngineFinished, Event, FrameReplayed, FrameSent, Progress, TokensProduced
from sluiceway.core.outlet import Outlet
from sluiceway.core.transitions import IllegalEventError


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
        case Progress(forwarded, delivered) if max(forwarded, delivered) > framed:
            raise IllegalEventError(f"{forwarded} forwarded, {delivered} delivered, {framed} were handed out")
        case Decided(decision) if decision.action is Action.DETACH and not ending.is_resumable:
            raise IllegalEventError("detach of a stream that nobody can come back to")
