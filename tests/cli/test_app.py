from __future__ import annotations

import json
import os

import psutil
import pytest
from typer.testing import CliRunner

from sluiceway.cli.app import app, main
from sluiceway.cli.daemon import read_state
from sluiceway.cli.ports import Ports


def test_nothing_runs(tmp_path):
    assert CliRunner().invoke(app, ["status", "--run-dir", str(tmp_path)]).exit_code == 1
    assert CliRunner().invoke(app, ["down", "--run-dir", str(tmp_path)]).exit_code == 0


def test_every_command_of_the_readme_exists():
    for command in (["up"], ["down"], ["status"], ["gateway"], ["demo"], ["bench"], ["bench", "isolation"]):
        assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0


def test_clashing_ports_are_explained_without_a_stack_trace(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sluiceway", "up", "--run-dir", str(tmp_path), "--envoy-port", "8001"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    error = " ".join(capsys.readouterr().err.split())
    assert error == "sluiceway: --triton-grpc-port is 8001, which is also --envoy-port; every port needs its own number"


def write_state(run_dir, **changes):
    content = {
        "pid": os.getpid(),
        "created": psutil.Process().create_time(),
        "ports": {name: getattr(Ports.default(), name) for name in Ports.__slots__},
        "ready": True,
        "restarts": {},
        "pids": {},
    }
    (run_dir / "state.json").write_text(json.dumps({**content, **changes}))


def test_state_of_a_living_supervisor(tmp_path):
    write_state(tmp_path)
    state = read_state(tmp_path)
    assert state is not None
    assert state.ports == Ports.default()


@pytest.mark.parametrize("changes", [{"created": 1.0}, {"pid": 2**22 + 1}, {"unknown": 1}])
def test_stale_or_foreign_state_counts_as_nothing(tmp_path, changes):
    write_state(tmp_path, **changes)
    assert read_state(tmp_path) is None


def test_broken_state_counts_as_nothing(tmp_path):
    (tmp_path / "state.json").write_text("{")
    assert read_state(tmp_path) is None
