"""KV on its way between device and host memory: which blocks, how far, and whose they are. No tensors."""

from __future__ import annotations

from collections.abc import Iterable

from sluiceway.engine.kv_pool import BlockPool
from sluiceway.engine.sequence import Sequence
from sluiceway.engine.step_plan import Copy, StepPlan


class Transfer:
    """One sequence's KV being copied. done: leading blocks copied so far."""

    __slots__ = ("done", "is_out", "sequence")

    def __init__(self, sequence: Sequence, *, is_out: bool) -> None:
        self.sequence = sequence
        self.is_out = is_out
        self.done = 0


class Swapper:
    """Copies run inside steps, at most ``blocks_per_step`` each way, oldest first.

    While a transfer runs, the sequence owns the blocks on both sides; its source stays whole to the end,
    so that cancel() loses nothing but the copying. Done, the source's blocks are free.
    """

    def __init__(self, device: BlockPool, blocks_per_step: int) -> None:
        self._device = device
        self._per_step = blocks_per_step
        self.host: BlockPool | None = None
        self.outs: dict[str, Transfer] = {}
        self.ins: dict[str, Transfer] = {}
        self.leaving_blocks = 0  # on the device, free once their copies are done
        self.swap_outs = 0
        self.swap_ins = 0

    @property
    def host_free(self) -> int:
        return self.host.free_count if self.host is not None else 0

    @property
    def is_busy(self) -> bool:
        return bool(self.outs or self.ins)

    def start_out(self, sequence: Sequence) -> bool:
        """Begin copying all its device blocks to the host; False, with nothing changed, if they do not fit."""
        if self.host is None or not sequence.blocks or len(sequence.blocks) > self.host.free_count:
            return False
        sequence.host_blocks = self.host.allocate(len(sequence.blocks))
        sequence.transfer = self.outs[sequence.request_id] = Transfer(sequence, is_out=True)
        self.leaving_blocks += len(sequence.blocks)
        return True

    def start_in(self, sequence: Sequence) -> None:
        """Begin copying back into ``sequence.blocks``, as many as it has on the host."""
        assert len(sequence.blocks) == len(sequence.host_blocks)
        sequence.transfer = self.ins[sequence.request_id] = Transfer(sequence, is_out=False)

    def cancel(self, sequence: Sequence) -> None:
        """Stop its transfer, if any: it keeps the blocks that it came from, the others are free."""
        transfer = sequence.transfer
        if transfer is None:
            return
        self._forget(transfer)
        if transfer.is_out:
            self.free_host(sequence)
        else:
            self._device.free(sequence.blocks)
            sequence.blocks = []

    def free_host(self, sequence: Sequence) -> None:
        if self.host is not None and sequence.host_blocks:
            self.host.free(sequence.host_blocks)
            sequence.host_blocks = []

    def plan(self, plan: StepPlan) -> None:
        """Add this step's copies."""
        plan.swap_out.extend(self._parts(self.outs.values()))
        plan.swap_in.extend(self._parts(self.ins.values()))

    def commit(self, plan: StepPlan) -> list[Transfer]:
        """The plan's copies are made. Transfers that are over: their sequence owns the target's blocks alone."""
        ended = []
        for copy in (*plan.swap_out, *plan.swap_in):
            sequence = copy.sequence
            transfer = sequence.transfer
            assert transfer is not None
            transfer.done += len(copy.host_blocks)
            if transfer.done < len(sequence.host_blocks):
                continue
            self._forget(transfer)
            ended.append(transfer)
            if transfer.is_out:
                self._device.free(sequence.blocks)
                sequence.blocks = []
                self.swap_outs += 1
            else:
                self.free_host(sequence)
                self.swap_ins += 1
        return ended

    def _parts(self, transfers: Iterable[Transfer]) -> list[Copy]:
        parts = []
        left = self._per_step
        for transfer in transfers:
            if not left:
                break
            sequence, at = transfer.sequence, transfer.done
            part = Copy(sequence, sequence.blocks[at : at + left], sequence.host_blocks[at : at + left])
            left -= len(part.host_blocks)
            parts.append(part)
        return parts

    def _forget(self, transfer: Transfer) -> None:
        sequence = transfer.sequence
        sequence.transfer = None
        if transfer.is_out:
            del self.outs[sequence.request_id]
            self.leaving_blocks -= len(sequence.blocks)
        else:
            del self.ins[sequence.request_id]
