"""``bench engine``: the engine by itself, without Triton and Envoy: speed, pauses, and what paused streams cost."""

from __future__ import annotations

import os

from sluiceway.cli.bench.harness import BenchContext, ScenarioResult
from sluiceway.cli.bench.promise import Promise
from sluiceway.cli.setup import REPOSITORY
from sluiceway.runtime.config import model_dir
from sluiceway.runtime.config_file import load_config

MODEL_SETTINGS = REPOSITORY / "model_repository" / "llm" / "sluiceway.yaml"


def run(context: BenchContext) -> ScenarioResult:
    """Raises ConfigError if no model directory is set."""
    # Torch and transformers take seconds to import, and only this scenario needs them in this process.
    from sluiceway.engine.benchmark import run_engine_benchmark
    from sluiceway.runtime.errors import ConfigError

    where = model_dir(load_config(MODEL_SETTINGS), MODEL_SETTINGS, os.environ.get("SLUICEWAY_MODEL_DIR"))
    if where is None:
        raise ConfigError("engine.model_dir: missing; the engine is measured with a real model")
    figures = run_engine_benchmark(where, context.quick, context.note)
    promises = [
        Promise.at_least("batch_speedup_8", figures["batch_speedup_8"], 3, ""),
        Promise.at_least("single_stream_ratio", figures["single_stream_ratio"], 0.8, ""),
        Promise.exactly("batch_texts_differ", figures["batch_texts_differ"], 0, "rounds"),
        Promise.exactly("pause_hold_texts_differ", figures["pause_hold_texts_differ"], 0, "answers"),
        Promise.exactly("pause_recompute_texts_differ", figures["pause_recompute_texts_differ"], 0, "answers"),
        Promise.at_most("longest_decode_gap_in_chunks", figures["longest_decode_gap_in_chunks"], 1, "chunks"),
        Promise.at_most("paused_step_ratio", figures["paused_step_ratio"], 1.05, ""),
    ]
    return ScenarioResult(settings={"model": where.name}, arms={"engine": figures}, promises=promises)
