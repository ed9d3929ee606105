"""The bench contract: what the JSON holds, what the exit code says."""

from __future__ import annotations

import json
import math
import sys
from types import ModuleType

import pytest
from typer.testing import CliRunner

from sluiceway.cli.bench import app as bench_app
from sluiceway.cli.bench import report
from sluiceway.cli.bench.harness import ScenarioResult
from sluiceway.cli.bench.promise import Promise


@pytest.fixture
def scenario(monkeypatch):
    """Stand in for `bench visibility`: a scenario whose one value is settable."""

    def install(value):
        def run(context):
            result = ScenarioResult(
                settings={"step_s": 0.02},
                arms={"ours": {"value": value, "quick": context.quick}},
                promises=[Promise.at_most("value_ratio", value, 1.1, "ratio")],
                plot=lambda figure: figure.subplots().plot([1, 2]),
            )
            assert context.run_dir.is_dir()
            return result

        module = ModuleType("sluiceway.cli.bench.visibility")
        module.run = run
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return install


def test_a_run_writes_the_contract_and_a_plot_and_exits_0(scenario, tmp_path):
    scenario(1.05)
    out = tmp_path / "new" / "v.json"
    answer = CliRunner().invoke(bench_app.app, ["visibility", "--out", str(out), "--quick"])
    assert answer.exit_code == 0, answer.output
    document = json.loads(out.read_text())
    assert set(document) == {"scenario", "quick", "machine", "versions", "settings", "arms", "promises"}
    assert document["promises"] == [
        {"name": "value_ratio", "value": 1.05, "limit": 1.1, "unit": "ratio", "holds": True}
    ]
    assert document["arms"] == {"ours": {"value": 1.05, "quick": True}}
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("value", [1.2, math.nan])
def test_a_broken_promise_exits_1_and_is_written_all_the_same(scenario, tmp_path, value):
    scenario(value)
    out = tmp_path / "v.json"
    answer = CliRunner().invoke(bench_app.app, ["visibility", "--out", str(out)])
    assert answer.exit_code == 1
    assert not json.loads(out.read_text())["promises"][0]["holds"]


def test_every_scenario_is_listed():
    answer = CliRunner().invoke(bench_app.app, ["--help"])
    assert all(name in answer.output for name in bench_app.SCENARIOS)


def test_no_figure_is_written_as_nan(tmp_path):
    result = ScenarioResult(
        settings={}, arms={"a": [math.nan, 1.0]}, promises=[Promise.at_most("x", math.nan, 1.0, "s")]
    )
    document = report.as_json("x", result, quick=False)
    assert document["promises"][0]["value"] is None
    assert document["arms"] == {"a": [None, 1.0]}
    assert document["machine"]["cores"] >= 1
