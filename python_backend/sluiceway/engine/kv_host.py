"""KV in host memory: copies of device pages, made beside the computation where the device can do that."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch

from sluiceway.engine.paged_attention import KvStore

_CALIBRATION_BLOCKS = 32


class HostKv:
    """One row a block, with its K and V of all layers, so that a block is one piece of pinned memory.

    On CUDA the copies run on a stream of their own. Order is kept by the streams alone, no call waits:
    start() lets the copies see what was computed before, and the next step's computation sees the copies.
    """

    def __init__(self, store: KvStore, blocks: int) -> None:
        """``store`` has all its layers already."""
        self._store = store
        pages = store.pages()
        like = pages[0]
        self._widths = [page[0].numel() for page in pages]
        self._device = like.device
        is_cuda = self._device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(self._device) if is_cuda else None  # type: ignore[no-untyped-call]
        self._is_pending = False
        self._rows = torch.zeros(blocks, sum(self._widths), dtype=like.dtype, pin_memory=is_cuda)

    def before_step(self) -> None:
        """Call before a step computes: it may use what was copied, and overwrite what was copied away."""
        if self._is_pending:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
            self._is_pending = False

    def start(self) -> None:
        """Call before a step's copies."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            self._is_pending = True

    def copy_out(self, device_blocks: list[int], host_blocks: list[int]) -> None:
        with self._beside():
            index = torch.tensor(device_blocks, device=self._device)
            rows = torch.cat([page.index_select(0, index).flatten(1) for page in self._store.pages()], dim=1)
            for at, first, count in _runs(host_blocks):
                self._rows[first : first + count].copy_(rows[at : at + count], non_blocking=True)

    def copy_in(self, host_blocks: list[int], device_blocks: list[int]) -> None:
        with self._beside():
            rows = self._rows.new_empty(len(host_blocks), self._rows.shape[1], device=self._device)
            for at, first, count in _runs(host_blocks):
                rows[at : at + count].copy_(self._rows[first : first + count], non_blocking=True)
            index = torch.tensor(device_blocks, device=self._device)
            for page, part in zip(self._store.pages(), torch.split(rows, self._widths, dim=1), strict=True):
                page.index_copy_(0, index, part.reshape(-1, *page.shape[1:]))

    def measure(self) -> float:
        """Blocks copied a second, one way; overwrites pages and rows, so only before any are used."""
        count = min(_CALIBRATION_BLOCKS, self._store.blocks, len(self._rows))
        blocks = list(range(count))
        seconds = []
        for _ in range(3):
            started = time.perf_counter()
            self.start()
            self.copy_out(blocks, blocks)
            self.copy_in(blocks, blocks)
            if self._stream is not None:
                self._stream.synchronize()
            seconds.append(time.perf_counter() - started)
        self.before_step()
        return 2 * count / max(min(seconds), 1e-9)

    def _beside(self) -> Any:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def kv_block_bytes(store: KvStore) -> int:
    """What one block takes on the host: K and V of all layers."""
    return sum(page[0].numel() * page.element_size() for page in store.pages())


def _runs(blocks: list[int]) -> list[tuple[int, int, int]]:
    """Consecutive block numbers as (index in ``blocks``, first block, count): one copy each."""
    runs: list[tuple[int, int, int]] = []
    for at, block in enumerate(blocks):
        if runs and block == runs[-1][1] + runs[-1][2]:
            start, first, count = runs[-1]
            runs[-1] = (start, first, count + 1)
        else:
            runs.append((at, block, 1))
    return runs
