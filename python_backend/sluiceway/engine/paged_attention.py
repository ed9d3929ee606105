"""Attention over the paged KV pool, called by transformers in place of its own.

A step's tokens of all sequences come flattened into one row: first one token for each decoding
sequence, then the prefill chunks. K and V are written to their slots in the pool; each part then
attends to its own pages. Decoding sequences share one padded call, a chunk has a call of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from sluiceway.engine.sequence import Sequence

ATTENTION_NAME = "sluiceway_paged"


class UnsupportedAttentionError(RuntimeError):
    """The model wants something from attention that this one does not do."""


class KvStore:
    """K and V of every layer: one tensor each, of shape [blocks, block_tokens, kv_heads, head_dim].

    Made at a layer's first call, when its shapes are known.
    """

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def layer_count(self) -> int:
        return len(self._layers)

    def pages(self) -> list[Tensor]:
        """K and V of every layer that was made."""
        return [page for pair in self._layers.values() for page in pair]

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's pages; ``key`` and ``value`` ([1, kv_heads, tokens, dim]) say what they look like."""
        pages = self._layers.get(index)
        if pages is None:
            shape = (self.blocks, self.block_tokens)
            pages = (
                key.new_zeros(*shape, key.shape[1], key.shape[3]),
                value.new_zeros(*shape, value.shape[1], value.shape[3]),
            )
            self._layers[index] = pages
        return pages


@dataclass(slots=True)
class Part:
    """One attention call: ``sequences`` rows of ``queries`` tokens each, over ``keys`` positions.

    blocks: flat block numbers, [sequences * blocks per sequence], padded with block 0.
    first: position of each sequence's first query, [sequences, 1]. padded: whether any of the keys
    are not to be seen by some query.
    """

    sequences: int
    queries: int
    keys: int
    blocks: Tensor
    first: Tensor
    padded: bool
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)

    def mask(self, window: int | None, like: Tensor) -> Tensor | None:
        """Additive mask [sequences, 1, queries, keys], the same for all layers of one window size."""
        if window not in self.masks:
            self.masks[window] = self._make_mask(window, like)
        return self.masks[window]

    def _make_mask(self, window: int | None, like: Tensor) -> Tensor | None:
        if not self.padded and (window is None or self.keys <= window):
            return None
        key_at = torch.arange(self.keys, device=like.device)
        query_at = self.first[:, :, None] + torch.arange(self.queries, device=like.device)[None, :, None]
        visible = key_at <= query_at
        if window is not None:
            visible &= key_at > query_at - window
        mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
        return mask.masked_fill_(~visible, float("-inf"))[:, None]


@dataclass(slots=True)
class StepBatch:
    """One forward pass: ``token_ids`` and ``positions`` [1, tokens], ``slots`` [tokens] into the pages."""

    store: KvStore
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    sample_rows: Tensor
    parts: list[Part]


def build_batch(store: KvStore, work: list[tuple[Sequence, int]], decodes: int, device: torch.device) -> StepBatch:
    """Lay out one step. ``work``: (sequence, how many tokens from ``computed`` on); the first
    ``decodes`` of them decode one token each. ``sample_rows``: the last row of each piece of work.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    sample_rows: list[int] = []
    size = store.block_tokens
    for sequence, count in work:
        span = range(sequence.computed, sequence.computed + count)
        token_ids.extend(sequence.token_ids[span.start : span.stop])
        positions.extend(span)
        slots.extend(sequence.blocks[at // size] * size + at % size for at in span)
        sample_rows.append(len(slots) - 1)
    parts = [_part(work[:decodes], size, device)] if decodes else []
    parts.extend(_part([piece], size, device) for piece in work[decodes:])
    return StepBatch(
        store=store,
        token_ids=torch.tensor([token_ids], device=device),
        positions=torch.tensor([positions], device=device),
        slots=torch.tensor(slots, device=device),
        sample_rows=torch.tensor(sample_rows, device=device),
        parts=parts,
    )


def _part(work: list[tuple[Sequence, int]], block_tokens: int, device: torch.device) -> Part:
    reach = [sequence.computed + count for sequence, count in work]
    keys = max(reach)
    width = -(-keys // block_tokens)
    table: list[int] = []
    for (sequence, _), end in zip(work, reach, strict=True):
        used = sequence.blocks[: -(-end // block_tokens)]
        table.extend(used)
        table.extend([0] * (width - len(used)))
    queries = work[0][1]
    return Part(
        sequences=len(work),
        queries=queries,
        keys=keys,
        blocks=torch.tensor(table, device=device),
        first=torch.tensor([[sequence.computed] for sequence, _ in work], device=device),
        padded=queries > 1 or min(reach) < keys,
    )


def paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - passed by position, always None: no mask function goes with ours
    scaling: float | None = None,
    sliding_window: int | None = None,
    paged_batch: StepBatch | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """The attention interface of transformers: q, k, v [1, heads, tokens, dim] to [1, tokens, heads, dim].

    Raises UnsupportedAttentionError for what would change the result and is not done here.
    """
    if paged_batch is None:
        raise UnsupportedAttentionError("the model does not pass keyword arguments on to its attention")
    for name in ("softcap", "s_aux", "position_bias"):
        if extras.get(name) is not None:
            raise UnsupportedAttentionError(f"the model's attention uses {name}")
    key_pages, value_pages = paged_batch.store.layer(module.layer_idx, key, value)
    key_pages.flatten(0, 1).index_copy_(0, paged_batch.slots, key[0].transpose(0, 1))
    value_pages.flatten(0, 1).index_copy_(0, paged_batch.slots, value[0].transpose(0, 1))

    outputs = []
    row = 0
    for part in paged_batch.parts:
        rows = part.sequences * part.queries
        outputs.append(_attend(part, query[0, :, row : row + rows], key_pages, value_pages, scaling, sliding_window))
        row += rows
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs))[None], None


def _attend(
    part: Part, query: Tensor, key_pages: Tensor, value_pages: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """``query`` [heads, rows, dim] of one part; answers [rows, heads, dim]."""
    heads, rows, _ = query.shape
    kv_heads = key_pages.shape[2]
    keys = _gather(key_pages, part)
    values = _gather(value_pages, part)
    mask = part.mask(window, query)
    if part.queries == 1:
        # All query heads of one KV head become that head's queries: no repeated K and V.
        grouped = query.transpose(0, 1).reshape(rows, kv_heads, heads // kv_heads, -1)
        attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scaling)
        return attended.reshape(rows, heads, -1)
    if heads != kv_heads:
        keys = keys.repeat_interleave(heads // kv_heads, dim=1)
        values = values.repeat_interleave(heads // kv_heads, dim=1)
    attended = scaled_dot_product_attention(query[None], keys, values, attn_mask=mask, scale=scaling)
    return attended[0].transpose(0, 1)


def _gather(pages: Tensor, part: Part) -> Tensor:
    """Pages of a part as [sequences, kv_heads, keys, dim]."""
    taken = pages.index_select(0, part.blocks)
    rows = taken.reshape(part.sequences, -1, *pages.shape[2:])
    return rows[:, : part.keys].transpose(1, 2)


AttentionInterface.register(ATTENTION_NAME, paged_attention)
