"""The gateway's settings and command line for one stack."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sluiceway.cli.ports import LOOPBACK, Ports
from sluiceway.cli.triton import merge


def write_config(run_dir: Path, ports: Ports, model_config: Path | None, changes: Mapping[str, Any]) -> Path:
    """The gateway's settings file: this stack's addresses and model, with ``changes`` over them.

    model_config: the model's merged sluiceway.yaml, which names the tokenizer's folder; so does the environment
    variable SLUICEWAY_MODEL_DIR, as for the backend.
    """
    settings: dict[str, Any] = {
        "listen": f"{LOOPBACK}:{ports.gateway}",
        "triton": f"{LOOPBACK}:{ports.triton_grpc}",
    }
    model_dir = os.environ.get("SLUICEWAY_MODEL_DIR") or _model_dir(model_config)
    if model_dir:
        settings["model_dir"] = model_dir
    path = run_dir / "gateway.yaml"
    path.write_text(yaml.safe_dump(merge(settings, changes), sort_keys=False))
    return path


def command(config: Path) -> list[str]:
    return [sys.executable, "-m", "sluiceway.cli.app", "gateway", "--config", str(config)]


def _model_dir(model_config: Path | None) -> str | None:
    if model_config is None:
        return None
    engine = (yaml.safe_load(model_config.read_text()) or {}).get("engine", {})
    model_dir = engine.get("model_dir")
    return str(model_dir) if model_dir else None
