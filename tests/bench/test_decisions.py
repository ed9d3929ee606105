from __future__ import annotations

import pytest

from sluiceway.cli.bench import decisions
from sluiceway.core.decision import Action


def test_every_step_has_its_streams_and_its_costs() -> None:
    costs = decisions.measure(streams=40, steps=60)
    assert len(costs.review_s) == len(costs.churn_s) == 60
    assert all(each >= 0 for each in costs.review_s + costs.churn_s)
    # Each stream is told once that it is held, and the machine is short enough for more than that.
    assert costs.decided["hold: dwell"] + costs.decided["hold: cheapest"] >= 40
    assert set(costs.decided) <= {f"{action}: {reason}" for action in Action for reason in ("cheapest", "dwell")}


def test_the_streams_are_really_behind_and_described() -> None:
    crowd = decisions._Crowd()
    request_id = crowd.add(5.0)
    stream = crowd.describe(request_id, 7.0)
    assert stream is not None
    assert stream.behind_s == pytest.approx(2.0)
    assert stream.kv_blocks > 0
    assert crowd.pop_oldest() == request_id
    assert crowd.describe(request_id, 7.0) is None
