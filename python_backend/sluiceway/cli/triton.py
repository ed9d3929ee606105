"""Triton's backend directory, command line and environment for one stack."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sluiceway.cli.ports import LOOPBACK, Ports
from sluiceway.cli.setup import Tools, python_library_folder


def assemble_backend(tools: Tools, run_dir: Path) -> Path:
    """Put the Python backend and the stub of this Python version side by side, as Triton wants them."""
    folder = run_dir / "backends"
    shutil.copytree(tools.python_backend, folder / "python", dirs_exist_ok=True)
    shutil.copy2(tools.stub, folder / "python")
    return folder


def write_model_config(repository: Path, run_dir: Path, ports: Ports, changes: Mapping[str, Any]) -> Path | None:
    """Merge ``changes`` and the stack's addresses over the repository's sluiceway.yaml.

    Returns the merged file, or None if no model of the repository has one (another backend's model).
    Raises ValueError for changes without a file to change.
    """
    sources = sorted(repository.glob("*/sluiceway.yaml"))
    if not sources:
        if changes:
            raise ValueError(f"no model in {repository} has a sluiceway.yaml: nothing to change {sorted(changes)} in")
        return None
    if len(sources) > 1:
        raise ValueError(f"{repository} has several models with a sluiceway.yaml; one process serves one")
    config = merge(yaml.safe_load(sources[0].read_text()) or {}, changes)
    config = merge(
        config,
        {
            "delivery": {"listen": f"{LOOPBACK}:{ports.als}"},
            "admin": {"listen": f"{LOOPBACK}:{ports.admin}"},
        },
    )
    model_dir = config.get("engine", {}).get("model_dir")
    if model_dir:  # relative to the file that names it; the merged one lies elsewhere
        config["engine"]["model_dir"] = str((sources[0].parent / model_dir).resolve())
    path = run_dir / "sluiceway.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes``; mappings merge key by key, anything else replaces."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def command(
    tools: Tools,
    *,
    repository: Path,
    backends: Path,
    ports: Ports,
    shm_prefix: str,
    exit_timeout_s: int,
    http: bool = False,
) -> list[str]:
    """http: Triton's own HTTP frontend, in the gateway's place; for comparison only."""
    return [
        str(tools.tritonserver),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        # Completing a config starts an extra stub that imports the model a second time.
        "--disable-auto-complete-config",
        # Idle HTTP connections eat the whole exit timeout, and finalize() is then never called.
        *([f"--http-address={LOOPBACK}", f"--http-port={ports.gateway}"] if http else ["--allow-http=false"]),
        f"--grpc-address={LOOPBACK}",
        f"--grpc-port={ports.triton_grpc}",
        f"--metrics-address={LOOPBACK}",
        f"--metrics-port={ports.triton_metrics}",
        "--allow-gpu-metrics=false",  # needs DCGM, which this build of Triton cannot start
        # Anchored: the match is partial otherwise, and x-request-id-of-mine would be forwarded too.
        "--grpc-header-forward-pattern=^x-request-id$",
        # Envoy's pings come every 10 s; the default of 300 s between pings answers them with GOAWAY.
        "--grpc-http2-min-recv-ping-interval-without-data=5000",
        # A dead Envoy is found after 10 + 5 s, also while nothing is streamed.
        "--grpc-keepalive-time=10000",
        "--grpc-keepalive-timeout=5000",
        "--grpc-keepalive-permit-without-calls=1",
        "--grpc-http2-max-pings-without-data=0",
        f"--exit-timeout-secs={exit_timeout_s}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        "--backend-config=python,stub-timeout-seconds=120",  # the model's imports and weights on a busy machine
    ]


def environment(tools: Tools, config: Path | None) -> dict[str, str]:
    """The environment of this process, changed so that the stub finds this interpreter, its libraries and packages.

    The stub's interpreter is isolated and ignores PYTHONPATH: the package must be installed (``make setup`` does).
    """
    result = dict(os.environ)

    def first(name: str, *values: str) -> None:
        result[name] = os.pathsep.join([*values, *filter(None, [result.get(name)])])

    first("PATH", str(Path(sys.executable).parent))
    first("LD_LIBRARY_PATH", str(python_library_folder()), str(tools.triton_libraries))
    result["PYTHONUNBUFFERED"] = "1"
    # One malloc arena a thread (Triton has over fifty) keeps a crowd's memory in pieces that never come back.
    result.setdefault("MALLOC_ARENA_MAX", "2")
    if config is not None:
        result["SLUICEWAY_CONFIG"] = str(config)
    return result
