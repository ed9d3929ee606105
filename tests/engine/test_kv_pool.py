from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sluiceway.engine.errors import BlockOwnershipError, OutOfBlocksError
from sluiceway.engine.kv_pool import BlockPool


class PoolMachine(RuleBasedStateMachine):
    TOTAL = 7

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.TOTAL)
        self.held: set[int] = set()

    @rule(count=st.integers(0, 9))
    def allocate(self, count: int) -> None:
        if count > self.TOTAL - len(self.held):
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(count)
        else:
            taken = self.pool.allocate(count)
            assert len(set(taken)) == len(taken) == count
            assert not self.held & set(taken)
            self.held |= set(taken)

    @rule(block_ids=st.lists(st.integers(-1, 8), max_size=8))
    def free(self, block_ids: list[int]) -> None:
        if len(set(block_ids)) == len(block_ids) and set(block_ids) <= self.held:
            self.pool.free(block_ids)
            self.held -= set(block_ids)
        else:
            with pytest.raises(BlockOwnershipError):
                self.pool.free(block_ids)

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.used_count == len(self.held)
        assert self.pool.free_count == self.TOTAL - len(self.held)
        assert self.held <= set(range(self.TOTAL))


TestPool = PoolMachine.TestCase


def test_negative_and_empty_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="kv_blocks"):
        BlockPool(0)
    with pytest.raises(ValueError, match="count"):
        BlockPool(1).allocate(-1)
