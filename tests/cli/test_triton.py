from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from sluiceway.cli import shm
from sluiceway.cli.ports import Ports
from sluiceway.cli.triton import command, environment, merge, write_model_config

PORTS = Ports.default()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository" / "llm"
    folder.mkdir(parents=True)
    (folder / "sluiceway.yaml").write_text(
        yaml.safe_dump({"engine": {"kind": "torch", "model_dir": "../weights", "kv_blocks": 5}, "admin": {"x": 1}})
    )
    return folder.parent


def test_merge_goes_into_mappings_and_replaces_the_rest():
    base = {"a": {"b": 1, "c": [1, 2]}, "d": 3}
    assert merge(base, {"a": {"c": [9]}, "e": {"f": 1}}) == {"a": {"b": 1, "c": [9]}, "d": 3, "e": {"f": 1}}
    assert base == {"a": {"b": 1, "c": [1, 2]}, "d": 3}


def test_merged_file_has_changes_addresses_and_an_absolute_model_dir(repository, tmp_path):
    path = write_model_config(repository, tmp_path, PORTS, {"engine": {"kind": "scripted"}})
    assert yaml.safe_load(path.read_text()) == {
        "engine": {"kind": "scripted", "model_dir": str(repository / "weights"), "kv_blocks": 5},
        "delivery": {"listen": "127.0.0.1:18002"},
        "admin": {"x": 1, "listen": "127.0.0.1:18003"},
    }


def test_repository_of_another_backend_has_no_file(tmp_path):
    (tmp_path / "naive").mkdir()
    assert write_model_config(tmp_path, tmp_path, PORTS, {}) is None
    with pytest.raises(ValueError, match=r"nothing to change \['engine'\] in"):
        write_model_config(tmp_path, tmp_path, PORTS, {"engine": {}})


def test_two_models_are_refused(repository, tmp_path):
    second = repository / "other"
    second.mkdir()
    (second / "sluiceway.yaml").write_text("{}")
    with pytest.raises(ValueError, match="several models"):
        write_model_config(repository, tmp_path, PORTS, {})


def test_forwarded_header_pattern_is_anchored_and_listeners_are_on_loopback():
    tools = SimpleNamespace(tritonserver="tritonserver")
    arguments = command(tools, repository="r", backends="b", ports=PORTS, shm_prefix="sluiceway-7-", exit_timeout_s=8)
    assert "--grpc-header-forward-pattern=^x-request-id$" in arguments
    assert "--allow-http=false" in arguments
    assert "--backend-config=python,shm-region-prefix-name=sluiceway-7-" in arguments
    assert {a for a in arguments if "-address=" in a} == {"--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"}


def test_stub_finds_this_interpreter_first(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    tools = SimpleNamespace(triton_libraries=Path("/triton.libs"))
    variables = environment(tools, Path("/run/sluiceway.yaml"))
    assert variables["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    own, triton, before = variables["LD_LIBRARY_PATH"].split(os.pathsep)
    assert list(Path(own).glob("libpython3.1*.so*"))
    assert (triton, before) == ("/triton.libs", "/before")
    assert variables["SLUICEWAY_CONFIG"] == "/run/sluiceway.yaml"
    assert "SLUICEWAY_CONFIG" not in environment(tools, None) or os.environ.get("SLUICEWAY_CONFIG")


def test_abandoned_regions_go_and_those_of_the_living_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(shm, "SHM", tmp_path)
    dead = 2**22 + 1  # above Linux's largest pid
    living = tmp_path / f"sluiceway-{os.getpid()}-0-region"
    for path in (living, tmp_path / f"sluiceway-{dead}-0-region", tmp_path / "somebody-elses"):
        path.touch()
    shm.remove_abandoned()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sluiceway-" + living.name.split("-", 1)[1], "somebody-elses"]
    shm.remove(shm.own_prefix())
    assert [p.name for p in tmp_path.iterdir()] == ["somebody-elses"]
