"""Pretended KV memory, so that tests see a wrong block table, a wrong copy, or the use of a freed block."""

from __future__ import annotations

from collections.abc import Iterable

from sluiceway.engine.errors import KvContentError
from sluiceway.engine.kv_pool import BlockPool
from sluiceway.engine.sequence import Sequence
from sluiceway.engine.step_plan import Copy, StepPlan

_POISON = (-1, -1)
_Slot = tuple[int, int]  # position, token id


class ScriptedKv:
    """What each block of both pools holds. Freed blocks are poisoned; every step reads all that a model would."""

    def __init__(self, device: BlockPool, host: BlockPool | None, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._device = self._memory(device)
        self._host = self._memory(host) if host is not None else []

    def compute(self, plan: StepPlan) -> None:
        """Do a step's copies, reads and writes. Raises KvContentError if it reads what nobody wrote there."""
        for copy in plan.swap_in:
            self._copy(copy, self._host, copy.host_blocks, self._device, copy.device_blocks)
        for copy in plan.swap_out:
            self._copy(copy, self._device, copy.device_blocks, self._host, copy.host_blocks)
        for sequence in plan.decode:
            self._read(sequence)
        for chunk in plan.prefill:
            self._read(chunk.sequence)
        for sequence in plan.decode:
            self._write(sequence, sequence.computed, 1)
        for chunk in plan.prefill:
            self._write(chunk.sequence, chunk.start, chunk.length)

    def _memory(self, pool: BlockPool) -> list[list[_Slot]]:
        memory = [[_POISON] * self._block_tokens for _ in range(pool.total)]

        def poison(block_ids: Iterable[int]) -> None:
            for block in block_ids:
                memory[block] = [_POISON] * self._block_tokens

        pool.on_free = poison
        return memory

    def _read(self, sequence: Sequence) -> None:
        size = self._block_tokens
        for position in range(sequence.computed):
            block, offset = sequence.blocks[position // size], position % size
            found, wanted = self._device[block][offset], (position, sequence.token_ids[position])
            if found != wanted:
                raise KvContentError(f"{sequence.request_id}: block {block} has {found} where {wanted} belongs")

    def _write(self, sequence: Sequence, start: int, length: int) -> None:
        size = self._block_tokens
        for position in range(start, start + length):
            self._device[sequence.blocks[position // size]][position % size] = (position, sequence.token_ids[position])

    @staticmethod
    def _copy(
        copy: Copy, source: list[list[_Slot]], sources: list[int], target: list[list[_Slot]], targets: list[int]
    ) -> None:
        for here, there in zip(sources, targets, strict=True):
            if source[here][0] == _POISON:
                raise KvContentError(f"{copy.sequence.request_id}: block {here} is copied but holds nothing")
            target[there] = list(source[here])
