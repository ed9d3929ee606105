"""Whose KV lies where, and whose is given up when blocks are short."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from sluiceway.engine.kv_pool import BlockPool
from sluiceway.engine.sequence import Sequence
from sluiceway.engine.swap import Swapper

Reclaim = Literal["any", "none"]


class Holders:
    """Sequences outside the batch that hold device blocks; the first is the first to lose them."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[str, Sequence] = OrderedDict()
        self.blocks = 0

    def add(self, sequence: Sequence) -> None:
        self._sequences[sequence.request_id] = sequence
        self.blocks += len(sequence.blocks)

    def discard(self, sequence: Sequence) -> None:
        if self._sequences.pop(sequence.request_id, None) is not None:
            self.blocks -= len(sequence.blocks)

    def first(self, but: Sequence | None = None) -> Sequence | None:
        """The first, or the one after it if that is ``but``."""
        return next((sequence for sequence in self._sequences.values() if sequence is not but), None)

    def held_by(self, sequence: Sequence) -> int:
        return len(sequence.blocks) if sequence in self else 0

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.request_id in self._sequences


class KvSpace:
    """Device pool, host pool, and the sequences outside the batch that hold blocks of either.

    Blocks are taken back only when somebody needs them, from (in this order) the one paused longest, the
    one deferred longest (plenty unread), KV on its way out, KV on its way in (its copy on the host stays),
    and last resumed ones that wait for a place. reclaim "none": paused ones keep theirs.
    on_lost(sequence): its KV was dropped. on_swap_in_cancelled(sequence): it is on the host again.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_tokens: int,
        reclaim: Reclaim,
        swap_blocks_per_step: int,
        on_lost: Callable[[Sequence], None],
        on_swap_in_cancelled: Callable[[Sequence], None],
    ) -> None:
        if reclaim not in ("any", "none"):
            raise ValueError(f"reclaim must be any or none, got {reclaim!r}")
        self.pool = pool
        self.swap = Swapper(pool, swap_blocks_per_step)
        self._block_tokens = block_tokens
        self._may_reclaim_paused = reclaim == "any"
        self._on_lost = on_lost
        self._on_swap_in_cancelled = on_swap_in_cancelled
        self._paused = Holders()
        self._deferred = Holders()
        self._resumed = Holders()
        self._givers = (self._paused, self._deferred) if self._may_reclaim_paused else (self._deferred,)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def hold(self, sequence: Sequence) -> None:
        """It is outside the batch from now on; blocks that it has may be taken."""
        if sequence.blocks:
            if sequence.is_paused:
                self._paused.add(sequence)
            elif sequence.weight < 1:
                self._deferred.add(sequence)
            else:
                self._resumed.add(sequence)

    def hold_again(self, sequence: Sequence) -> None:
        """Its weight has changed: who is to lose blocks first may have, too."""
        if sequence.transfer is None:
            self._let_go(sequence)
            self.hold(sequence)

    def take_out(self, sequence: Sequence) -> None:
        """Its blocks are its own again: no transfer goes on, nobody may take them."""
        self._let_go(sequence)
        self.swap.cancel(sequence)

    def start_swap_out(self, sequence: Sequence) -> bool:
        """Begin copying a holder's KV to the host; False if it holds none to give or there is no room."""
        if sequence.transfer is not None or not self.swap.start_out(sequence):
            return False
        self._let_go(sequence)
        return True

    def held_blocks(self, but: Sequence) -> int:
        """Blocks of those that are paused or deferred, as far as ``but`` may take them; its own do not count."""
        return sum(group.blocks - group.held_by(but) for group in self._givers)

    def swap_out_held(self, blocks: int, but: Sequence | None = None) -> None:
        """Begin copying out paused and deferred ones' KV, ``but``'s not, until ``blocks`` will come free, or the
        host is full.
        """
        for group in self._givers:
            while blocks > 0 and (victim := group.first(but)) is not None:
                held = len(victim.blocks)
                if not self.start_swap_out(victim):
                    return
                blocks -= held

    def start_swap_in(self, sequence: Sequence) -> None:
        """Begin copying back; room() has said that there are blocks."""
        self._make_free(len(sequence.host_blocks))
        sequence.blocks = self.pool.allocate(len(sequence.host_blocks))
        self.swap.start_in(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Free all it has, on both sides; its tokens are to be computed again."""
        self.take_out(sequence)
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        self.swap.free_host(sequence)
        sequence.computed = 0

    def reserve(self, sequence: Sequence, tokens: int) -> int:
        """Extend the block table for up to ``tokens`` more; how many then fit."""
        missing = self.blocks_for(sequence.computed + tokens) - len(sequence.blocks)
        if missing > 0:
            self._make_free(missing)
            sequence.blocks += self.pool.allocate(min(missing, self.pool.free_count))
        return min(tokens, len(sequence.blocks) * self._block_tokens - sequence.computed)

    def trim(self, sequence: Sequence) -> None:
        """Give back blocks in which nothing is computed yet."""
        used = self.blocks_for(sequence.computed)
        self.pool.free(sequence.blocks[used:])
        del sequence.blocks[used:]

    def room(self, sequence: Sequence, *, deferred: bool, resumed: bool) -> int:
        """Blocks that ``sequence`` (outside the batch) could get beside its own, from whom it may take."""
        groups = [self._paused] if self._may_reclaim_paused else []
        groups += [self._deferred] if deferred else []
        groups += [self._resumed] if resumed else []
        return self.pool.free_count + sum(group.blocks - group.held_by(sequence) for group in groups)

    def _let_go(self, sequence: Sequence) -> None:
        for group in (self._paused, self._deferred, self._resumed):
            group.discard(sequence)

    def _make_free(self, blocks: int) -> None:
        while blocks > self.pool.free_count and self._reclaim_one():
            pass

    def _reclaim_one(self) -> bool:
        victim = next((first for group in self._givers if (first := group.first()) is not None), None)
        victim = victim or self._leaving()
        if victim is None and self.swap.ins:
            back = next(reversed(self.swap.ins.values())).sequence
            self.swap.cancel(back)
            self._on_swap_in_cancelled(back)
            return True
        victim = victim or self._resumed.first()
        if victim is None:
            return False
        self.drop(victim)
        self._on_lost(victim)
        return True

    def _leaving(self) -> Sequence | None:
        for transfer in self.swap.outs.values():
            if self._may_reclaim_paused or not transfer.sequence.is_paused:
                return transfer.sequence
        return None
