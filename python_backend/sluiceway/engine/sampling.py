"""From logits to token ids. A row's result depends on its own logits, parameters and generator alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sluiceway.engine.protocol import SamplingParams

_GREEDY_BELOW = 1e-5  # dividing by less overflows, and says the same


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """rng: the request's own. banned: token ids that may not be chosen (end of sequence before min_tokens)."""

    params: SamplingParams
    rng: random.Random
    banned: tuple[int, ...] = ()

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < _GREEDY_BELOW


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """One token id for each row of ``logits`` [rows, vocabulary], which may be changed in place."""
    for index, row in enumerate(rows):
        if row.banned:
            logits[index, list(row.banned)] = float("-inf")
    chosen: list[int] = logits.argmax(dim=-1).tolist()
    ordered: list[int] = []
    plain: list[int] = []
    for index, row in enumerate(rows):
        if not row.is_greedy:
            (ordered if row.params.top_k > 0 or row.params.top_p < 1 else plain).append(index)
    for indices, draw in ((plain, _draw_plain), (ordered, _draw_ordered)):
        if indices:
            group = [rows[index] for index in indices]
            temperature = logits.new_tensor([row.params.temperature for row in group])[:, None]
            scaled = logits[indices].float() / temperature
            for index, token_id in zip(indices, draw(scaled, group), strict=True):
                chosen[index] = token_id
    return chosen


def _draw_plain(scaled: Tensor, group: Sequence[SamplingRow]) -> list[int]:
    return _invert(scaled.softmax(dim=-1), group).flatten().tolist()


def _draw_ordered(scaled: Tensor, group: Sequence[SamplingRow]) -> list[int]:
    """top_k keeps the likeliest k; top_p then the fewest of them that reach p together, never none."""
    vocabulary = scaled.shape[-1]
    top_k = [min(row.params.top_k, vocabulary) if row.params.top_k > 0 else vocabulary for row in group]
    # A stable sort breaks ties by token id, whatever else is in the group.
    values, token_ids = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocabulary, device=scaled.device)
    values = values.masked_fill(rank >= torch.tensor(top_k, device=scaled.device)[:, None], float("-inf"))
    probabilities = values.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    top_p = probabilities.new_tensor([row.params.top_p for row in group])[:, None]
    probabilities = probabilities.masked_fill((before >= top_p) & (rank > 0), 0.0)
    return token_ids.gather(-1, _invert(probabilities, group)).flatten().tolist()


def _invert(probabilities: Tensor, group: Sequence[SamplingRow]) -> Tensor:
    """Index [rows, 1] at which the cumulated probability passes the row's random number."""
    cumulated = probabilities.double().cumsum(dim=-1)
    # 1 - random() is in (0, 1]: never 0, which would choose a leading token of probability 0.
    drawn = cumulated.new_tensor([1.0 - row.rng.random() for row in group])[:, None] * cumulated[:, -1:]
    return torch.searchsorted(cumulated, drawn).clamp_(max=probabilities.shape[-1] - 1)
