from __future__ import annotations

import math
from statistics import quantiles

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.cli.bench.promise import Promise
from sluiceway.cli.bench.stats import percentile, ratio, summary


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_percentile_agrees_with_the_standard_library(values):
    expected = quantiles(values, n=100, method="inclusive")
    assert math.isclose(percentile(values, 99), expected[98], rel_tol=1e-9, abs_tol=1e-6)
    assert math.isclose(percentile(values, 50), expected[49], rel_tol=1e-9, abs_tol=1e-6)


def test_what_was_not_measured_never_holds():
    assert math.isnan(percentile([], 99))
    assert math.isnan(ratio(1.0, 0.0))
    assert not Promise.at_most("x", math.nan, 1.0, "").holds
    assert not Promise.at_least("x", math.nan, 1.0, "").holds
    assert not Promise.exactly("x", math.nan, 0.0, "").holds
    assert summary([]) == {"count": 0}


def test_promises_hold_at_their_limit():
    assert Promise.at_most("x", 1.1, 1.1, "ratio").holds
    assert not Promise.at_most("x", 1.1001, 1.1, "ratio").holds
    assert Promise.exactly("x", 0, 0, "").holds
