"""What a stream's machine asks the shells to do. Commands carry no behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.core.events import FinishReason


@dataclass(frozen=True, slots=True)
class Frame:
    """One response message.

    sequence: 0, 1, 2, ... per request.
    first_token_index: index of token_ids[0] in the answer (of the next token, if there is none here).
    text: whole UTF-8 sequences only. finish_reason: set on the last frame alone.
    wire_bytes: size of the gRPC message as the client-facing hop counts it (prefix and protobuf), as
    estimated by the sender's ``frame_overhead_bytes``; the ledger corrects itself from Envoy's counters.
    """

    sequence: int
    first_token_index: int
    token_ids: tuple[int, ...]
    text: str
    wire_bytes: int
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Hand ``frame`` to Triton; with the FINAL flag if ``frame.finish_reason`` is set.

    is_notice: an empty frame that tells this client that its part is over. It is not part of the answer:
    the spool holds another frame under its number (a SpoolFrame says which). Any other frame of a
    resumable stream is also kept in the spool.
    """

    frame: Frame
    is_notice: bool = False


@dataclass(frozen=True, slots=True)
class CloseSilently:
    """Send the FINAL flag with no response: nobody is there to read one."""


@dataclass(frozen=True, slots=True)
class PauseGeneration:
    """Take the request out of the batch; its KV stays."""


@dataclass(frozen=True, slots=True)
class ResumeGeneration:
    """Put the request back into the batch (recomputes dropped KV)."""


@dataclass(frozen=True, slots=True)
class ReleaseKv:
    """Drop the paused request's KV blocks, keep its tokens."""


@dataclass(frozen=True, slots=True)
class SwapOut:
    """Copy the paused request's KV to host memory and free its device blocks."""


@dataclass(frozen=True, slots=True)
class SetWeight:
    """How much the client needs the next token: 1.0 normal, less with plenty unread (see weight.py)."""

    weight: float


@dataclass(frozen=True, slots=True)
class SpoolFrame:
    """Keep ``frame`` in the spool: nobody is connected to take it. The last one has a finish_reason."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class ReplaceGeneration:
    """End the request in the engine and submit a short one in its place; its tokens come as index 0, 1, ..."""


@dataclass(frozen=True, slots=True)
class AbortGeneration:
    """End the request in the engine, which answers with one EngineFinished."""


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The stream is over: FINAL is out and KV is back. Comes exactly once; the registry frees its slot."""

    reason: FinishReason


Command = (
    SendFrame
    | CloseSilently
    | PauseGeneration
    | ResumeGeneration
    | ReleaseKv
    | SwapOut
    | SetWeight
    | SpoolFrame
    | ReplaceGeneration
    | AbortGeneration
    | StreamClosed
)
