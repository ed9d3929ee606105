"""The command, from a trace to a table, a document and a picture."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluiceway.cli.app import app
from sluiceway.cli.simulate.compare import ratios
from sluiceway.cli.simulate.compare import simulate as simulate_arm
from sluiceway.cli.simulate.profile import PROFILES
from sluiceway.cli.simulate.trace import draw, read

SMALL = ("--profile", "bench", "--streams", "12", "--outputs", "fixed:50", "--processes", "1")


def simulate(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_all_arms_as_a_table_a_document_and_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "sub" / "figures.json"
    shown = simulate(*SMALL, "--out", str(out))
    document = json.loads(out.read_text())
    assert list(document["arms"]) == ["naive", "run_to_completion", "hold", "drop", "ours"]
    for name, arm in document["arms"].items():
        assert name in shown
        assert arm["normal"] == 6
        assert arm["goodput"] is not None
        assert arm["finish_reasons"]["length"] >= 6
    assert document["trace"]["slow_requests"] == 6
    assert document["ratios"]["goodput_ratio"] is not None
    assert out.with_suffix(".png").stat().st_size > 10_000


def test_a_saved_trace_gives_the_same_figures(tmp_path: Path) -> None:
    saved, first, second = tmp_path / "trace.jsonl", tmp_path / "first.json", tmp_path / "second.json"
    arms = ("--arms", "drop,ours")
    simulate(*SMALL, *arms, "--save-trace", str(saved), "--out", str(first))
    assert len(read(saved)) == 12
    simulate("--profile", "bench", "--processes", "1", *arms, "--trace", str(saved), "--out", str(second))
    one, other = (json.loads(path.read_text())["arms"] for path in (first, second))
    real_time = ("took_s", "policy_turn_ms", "policy_ms_per_step")
    for name in ("drop", "ours"):
        for figure in one[name].keys() - real_time:
            assert one[name][figure] == other[name][figure], figure


def test_arms_run_beside_each_other_give_what_they_give_alone(tmp_path: Path) -> None:
    alone, beside = tmp_path / "alone.json", tmp_path / "beside.json"
    simulate(*SMALL, "--arms", "run_to_completion,ours", "--out", str(alone))
    simulate(*SMALL[:-2], "--processes", "2", "--arms", "run_to_completion,ours", "--out", str(beside))
    one, other = (json.loads(path.read_text()) for path in (alone, beside))
    assert one["ratios"] == other["ratios"]
    assert list(other["arms"]) == ["run_to_completion", "ours"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--arms", "ours,best"), "arm is 'best', must be one of naive"),
        (("--profile", "cpu"), "profile is 'cpu'"),
        (("--outputs", "short"), "output lengths are 'short'"),
        (("--distribution", "daily"), "arrivals is 'daily'"),
        (("--outputs", "fixed:9000", "--profile", "bench"), "does not fit profile bench: its KV holds 4096"),
    ],
)  # fmt: skip
def test_bad_input_is_named(arguments: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        simulate("--streams", "3", *arguments)


def test_a_bad_trace_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n-5,1,1\n")
    with pytest.raises(ValueError, match="line 2: arrival_s is '-5', must be 0 or more"):
        simulate("--trace", str(path))


def test_ratios_compare_ours_with_the_arms_to_beat() -> None:
    report = simulate_arm("drop", PROFILES["bench"], draw(streams=3, per_s=1, outputs="fixed:20"))
    half = replace(report.figures, goodput=0.5, ttft_p99_s=4.0, wasted_tokens=100, throughput_tokens_per_s=10.0)
    whole = replace(report.figures, goodput=1.0, ttft_p99_s=1.0, wasted_tokens=20, throughput_tokens_per_s=30.0)
    held = replace(report.figures, ttft_p99_s=10.0)
    reports = {
        name: replace(report, name=name, figures=figures)
        for name, figures in (("ours", whole), ("run_to_completion", half), ("hold", held))
    }
    found = ratios(reports)
    assert found["goodput_ratio"] == 2
    assert found["ttft_p99_vs_run_to_completion"] == 0.25
    assert found["ttft_p99_vs_hold"] == 0.1
    assert found["throughput_vs_run_to_completion"] == 3
    assert found["wasted_vs_run_to_completion"] == 0.2
    assert ratios({"hold": report}) == {}
