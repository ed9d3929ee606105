from __future__ import annotations

import pytest

from sluiceway.cli.supervisor import Backoff


def test_quick_deaths_wait_longer_up_to_the_limit():
    backoff = Backoff(shortest_s=0.5, longest_s=10, good_life_s=30)
    assert [backoff.after_death(1) for _ in range(7)] == [0.5, 1, 2, 4, 8, 10, 10]


def test_a_good_life_forgives():
    backoff = Backoff(shortest_s=0.5, longest_s=10, good_life_s=30)
    for _ in range(5):
        backoff.after_death(29.9)
    assert backoff.after_death(30) == 0.5
    assert backoff.after_death(1) == 1


def test_dying_for_ever_does_not_overflow():
    backoff = Backoff(deaths=10_000)
    assert backoff.after_death(0) == pytest.approx(10)
