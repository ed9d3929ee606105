"""What one step computes and copies.

How an engine drives the scheduler with it, all on the engine thread::

    plan = scheduler.plan()                # blocks for everything planned are allocated in blocks
    for copy in plan.swap_out, swap_in:    # copy KV blocks between device and host
        ...
    for chunk in plan.prefill:             # compute KV of token_ids[start : start + length]
        ...
    for sequence in plan.decode:           # compute KV of token_ids[computed], one token
        ...
    scheduler.commit(plan)                 # the KV now exists: computed moves on
    for sequence in plan.sampled:          # decodes and last chunks: their last position's logits
        sequence.append(token_id)          # are those of the next token
        if ended:
            scheduler.remove(sequence.request_id)  # blocks are free from here on

Between plan() and the last append()/remove() no other method may be called. A preempted or released sequence
recomputes prompt and answer so far as prefill; its last chunk samples the next token as after a prompt, so
an engine needs no case for it. An engine ends a sequence before it outgrows capacity_tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sluiceway.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prefill positions ``start`` to ``start + length``; ``is_last``: the next token is sampled from it."""

    sequence: Sequence
    start: int
    length: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Copy:
    """KV blocks to copy: ``device_blocks[i]`` and ``host_blocks[i]`` belong together."""

    sequence: Sequence
    device_blocks: list[int]
    host_blocks: list[int]


@dataclass(slots=True)
class StepPlan:
    """One step. Prefill lengths sum to at most the chunk budget; a sequence occurs once.

    swap_out copies device to host, swap_in host to device. None of their blocks is touched by this step's
    prefill and decode, so they may run beside it; they must be done (or ordered) before the next step's.
    """

    prefill: list[Chunk] = field(default_factory=list)
    decode: list[Sequence] = field(default_factory=list)
    swap_out: list[Copy] = field(default_factory=list)
    swap_in: list[Copy] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.prefill or self.decode or self.swap_out or self.swap_in)

    @property
    def sampled(self) -> list[Sequence]:
        """Sequences that get a new token this step."""
        return self.decode + [chunk.sequence for chunk in self.prefill if chunk.is_last]

    @property
    def prefill_tokens(self) -> int:
        return sum(chunk.length for chunk in self.prefill)

    @property
    def swapped_blocks(self) -> int:
        """Blocks copied, both ways together."""
        return sum(len(copy.host_blocks) for copy in self.swap_out) + sum(
            len(copy.host_blocks) for copy in self.swap_in
        )
