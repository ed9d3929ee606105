"""What can go wrong inside an engine."""

from __future__ import annotations


class EngineError(Exception):
    """Base of the errors that engines raise on their own account."""


class OutOfBlocksError(EngineError):
    """The pool has fewer free blocks than asked for; nothing was allocated."""


class BlockOwnershipError(EngineError):
    """A block was freed that is not allocated: freed twice, or never this pool's."""


class KvContentError(EngineError):
    """A block does not hold the KV that was expected there."""
