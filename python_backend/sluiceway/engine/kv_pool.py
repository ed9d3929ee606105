"""Fixed-size KV-cache blocks, handed out by id."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluiceway.engine.errors import BlockOwnershipError, OutOfBlocksError


class BlockPool:
    """Block ids 0 .. total-1; every operation is all or nothing. Holds no memory itself, only ids.

    on_free: called with blocks just freed, for tests that poison them.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"kv_blocks must be at least 1, got {total}")
        self._total = total
        # Last freed is handed out first: it is the block most likely still in a cache.
        self._free = list(range(total - 1, -1, -1))
        self._allocated: set[int] = set()
        self.on_free: Callable[[Sequence[int]], None] | None = None

    @property
    def total(self) -> int:
        return self._total

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def used_count(self) -> int:
        return len(self._allocated)

    def allocate(self, count: int) -> list[int]:
        """``count`` block ids, now the caller's.

        Raises ValueError for a negative count and OutOfBlocksError when fewer are free.
        """
        if count < 0:
            raise ValueError(f"count must not be negative, got {count}")
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks asked for, {len(self._free)} of {self._total} are free")
        split = len(self._free) - count
        taken = self._free[split:]
        del self._free[split:]
        taken.reverse()
        self._allocated.update(taken)
        return taken

    def free(self, block_ids: Sequence[int]) -> None:
        """Take blocks back. Raises BlockOwnershipError, freeing none, if one is not allocated or named twice."""
        returned = set(block_ids)
        if len(returned) != len(block_ids):
            raise BlockOwnershipError("a block is named twice in one free()")
        if not returned <= self._allocated:
            raise BlockOwnershipError(f"blocks {sorted(returned - self._allocated)} are not allocated")
        self._allocated -= returned
        self._free.extend(reversed(block_ids))
        if self.on_free is not None:
            self.on_free(block_ids)


def host_block_count(host_kv_bytes: int, block_bytes: int) -> int:
    """How many KV blocks ``host_kv_bytes`` hold; 0 for 0, which turns swapping off.

    Raises ValueError for what is neither 0 nor room for one block.
    """
    if host_kv_bytes == 0:
        return 0
    if host_kv_bytes < block_bytes:
        raise ValueError(
            f"host_kv_bytes is {host_kv_bytes}, less than one KV block of {block_bytes} bytes; 0 turns swapping off"
        )
    return host_kv_bytes // block_bytes
