from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from sluiceway.engine.protocol import SamplingParams
from sluiceway.engine.sampling import SamplingRow, sample


def row(banned: tuple[int, ...] = (), **params) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), random.Random(params.get("seed")), banned)


LOGITS = torch.log(torch.tensor([[0.1, 0.4, 0.05, 0.3, 0.15]]))


def draws(count: int, **params) -> Counter[int]:
    rng = random.Random(3)
    shared = SamplingRow(SamplingParams(**params), rng)
    return Counter(sample(LOGITS.repeat(count, 1), [shared] * count))


def test_greedy_takes_the_likeliest_also_as_temperature_vanishes() -> None:
    assert sample(LOGITS.clone(), [row(temperature=0.0)]) == [1]
    assert sample(LOGITS.clone(), [row(temperature=1e-9)]) == [1]


def test_banned_tokens_are_never_chosen() -> None:
    assert sample(LOGITS.clone(), [row(banned=(1,), temperature=0.0)]) == [3]
    assert sample(LOGITS.clone(), [row(banned=(0, 1, 2, 3), temperature=1.0)]) == [4]


def test_frequencies_follow_the_probabilities() -> None:
    counts = draws(4000, temperature=1.0)
    for token_id, share in enumerate([0.1, 0.4, 0.05, 0.3, 0.15]):
        assert counts[token_id] / 4000 == pytest.approx(share, abs=0.03)


def test_temperature_sharpens() -> None:
    assert draws(4000, temperature=0.5)[1] / 4000 == pytest.approx(0.16 / 0.285, abs=0.03)


@pytest.mark.parametrize(("top_k", "allowed"), [(1, {1}), (2, {1, 3}), (3, {1, 3, 4}), (99, {0, 1, 2, 3, 4})])
def test_top_k(top_k: int, allowed: set[int]) -> None:
    assert set(draws(2000, temperature=1.0, top_k=top_k)) == allowed


@pytest.mark.parametrize(("top_p", "allowed"), [(1e-9, {1}), (0.39, {1}), (0.6, {1, 3}), (0.8, {1, 3, 4})])
def test_top_p_keeps_the_fewest_that_reach_it_and_never_none(top_p: float, allowed: set[int]) -> None:
    assert set(draws(2000, temperature=1.0, top_p=top_p)) == allowed


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(1)
    logits = torch.randn(4, 500)
    params = [
        {"temperature": 0.7, "seed": 5}, {"temperature": 1.2, "top_k": 7, "seed": 6},
        {"temperature": 1.0, "top_p": 0.9, "seed": 7}, {"temperature": 0.0},
    ]  # fmt: skip
    together = sample(logits.clone(), [row(**each) for each in params])
    alone = [sample(logits[index : index + 1].clone(), [row(**each)])[0] for index, each in enumerate(params)]
    assert together == alone


def test_the_same_seed_gives_the_same_tokens() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(2))
    first, second = row(seed=11), row(seed=11)
    assert [sample(logits.clone(), [first]) for _ in range(20)] == [sample(logits.clone(), [second]) for _ in range(20)]
