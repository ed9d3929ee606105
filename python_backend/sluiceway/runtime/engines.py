"""Builds the engine that the configuration asks for. Imports only that one: torch alone takes seconds."""

from __future__ import annotations

from pathlib import Path

from sluiceway.engine.protocol import Engine
from sluiceway.runtime.config import EngineConfig
from sluiceway.runtime.errors import ConfigError


def build_engine(config: EngineConfig, model_dir: Path | None) -> Engine:
    """Raise ConfigError naming the setting if the engine cannot be built from it."""
    if config.kind == "scripted":
        from sluiceway.engine.scripted import ScriptedEngine

        return ScriptedEngine(
            step_s=config.step_s,
            script=config.script,
            kv_blocks=config.kv_blocks,
            kv_block_tokens=config.kv_block_tokens,
            max_batch_streams=config.max_batch_streams,
            prefill_chunk_tokens=config.prefill_chunk_tokens,
            answer_tokens=config.answer_tokens,
            context_tokens=config.context_tokens,
        )
    if model_dir is None:
        raise ConfigError("engine.model_dir: missing; the torch engine needs a model directory")
    from sluiceway.engine.model_files import ModelLoadError
    from sluiceway.engine.torch_engine import TorchEngine

    try:
        return TorchEngine(
            model_dir,
            device=config.device,
            dtype=config.dtype,
            kv_blocks=config.kv_blocks,
            kv_block_tokens=config.kv_block_tokens,
            max_batch_streams=config.max_batch_streams,
            prefill_chunk_tokens=config.prefill_chunk_tokens,
            context_tokens=config.context_tokens,
        )
    except (ModelLoadError, ValueError) as error:
        raise ConfigError(f"engine.model_dir, device or dtype: {error}") from None
