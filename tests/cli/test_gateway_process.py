from __future__ import annotations

import yaml

from sluiceway.cli import gateway_process
from sluiceway.cli.ports import Ports

PORTS = Ports.default()


def settings(tmp_path, model_config=None, changes=None):
    return yaml.safe_load(gateway_process.write_config(tmp_path, PORTS, model_config, changes or {}).read_text())


def test_the_gateway_gets_the_stacks_addresses_and_the_models_tokenizer(tmp_path, monkeypatch):
    monkeypatch.delenv("SLUICEWAY_MODEL_DIR", raising=False)
    model = tmp_path / "sluiceway.yaml"
    model.write_text("engine: {kind: torch, model_dir: /models/one}")
    assert settings(tmp_path, model) == {
        "listen": "127.0.0.1:8090",
        "triton": "127.0.0.1:8001",
        "model_dir": "/models/one",
    }


def test_the_environment_names_the_same_model_as_for_the_backend(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICEWAY_MODEL_DIR", "/models/other")
    model = tmp_path / "sluiceway.yaml"
    model.write_text("engine: {model_dir: /models/one}")
    assert settings(tmp_path, model)["model_dir"] == "/models/other"


def test_changes_win_and_a_model_without_a_folder_leaves_it_out(tmp_path, monkeypatch):
    monkeypatch.delenv("SLUICEWAY_MODEL_DIR", raising=False)
    assert settings(tmp_path, None, {"heartbeat_s": 1}) == {
        "listen": "127.0.0.1:8090",
        "triton": "127.0.0.1:8001",
        "heartbeat_s": 1,
    }
    assert settings(tmp_path, None, {"triton": "127.0.0.1:9"})["triton"] == "127.0.0.1:9"
