"""The states of a stream; how it moves between them is in transitions.py."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """DRAINING: no further token is wanted (the engine is done, or was told to end); the rest leaves."""

    WAITING = "waiting"  # submitted, no token yet
    STREAMING = "streaming"
    PAUSED = "paused"  # out of the batch, KV held
    SWAPPED = "swapped"  # out of the batch, KV in host memory
    PREEMPTED = "preempted"  # out of the batch, KV dropped, tokens kept
    DRAINING = "draining"
    DETACHED = "detached"  # no client; the engine's frames go to the spool
    FINISHED = "finished"  # FINAL is out and KV is back

    @property
    def is_out_of_batch(self) -> bool:
        return self in _OUT_OF_BATCH


_OUT_OF_BATCH = (State.PAUSED, State.SWAPPED, State.PREEMPTED)
