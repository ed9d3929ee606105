"""What the simulator says of a cell before it is run, and by how much it is wrong.

Same core, scheduler, trace and machine; made-up clock, clients and chain. The machine's figures are those that
the scripted engine is given, so nothing is fitted to the measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sluiceway.cli.bench.policy_cell import Cell
from sluiceway.cli.bench.stats import ratio
from sluiceway.cli.simulate.arms import ARMS
from sluiceway.cli.simulate.figures import Figures, Outcome, figures
from sluiceway.cli.simulate.profile import Profile
from sluiceway.cli.simulate.simulation import Simulation
from sluiceway.cli.simulate.trace import Arrival

RATIOS = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "throughput_tokens_per_s", "wasted_tokens")


@dataclass(frozen=True, slots=True)
class Prediction:
    """``figures`` of the simulated cell."""

    figures: Figures

    def as_json(self, measured: Cell) -> dict[str, Any]:
        """goodput_error: predicted less measured, a share of the readers. The rest: predicted / measured."""
        seen = measured.figures
        return {
            "goodput": self.figures.goodput,
            "goodput_error": self.figures.goodput - seen.goodput,
            **{name: getattr(self.figures, name) for name in RATIOS},
            "predicted_over_measured": {
                name: ratio(getattr(self.figures, name), getattr(seen, name)) for name in RATIOS
            },
        }


def predict(arm: str, machine: Profile, trace: Sequence[Arrival], *, limit_s: float) -> Prediction:
    """Simulate one cell; what would come after ``limit_s`` counts as in a cell that is cut then."""
    result = Simulation(ARMS[arm], machine, trace).run()
    ended_at = min(result.ended_at, limit_s)
    outcomes = [_until(outcome, ended_at) for outcome in result.outcomes]
    generated = [sample for sample in result.generated if sample[0] <= ended_at]
    return Prediction(figures(outcomes, machine.targets, ended_at=ended_at, generated=generated))


def _until(outcome: Outcome, at: float) -> Outcome:
    """As a watcher who stopped looking then has it."""
    later: dict[str, Any] = {
        field: None
        for field in ("first_token_at", "finished_at", "left_at")
        if (value := getattr(outcome, field)) is not None and value > at
    }
    return replace(outcome, **later) if later else outcome
