"""Builds the engine that the configuration asks for. Imports only that one: torch alone takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sluiceway.engine.protocol import Engine
from sluiceway.runtime.config_sections import EngineConfig
from sluiceway.runtime.errors import ConfigError


def build_engine(config: EngineConfig, model_dir: Path | None) -> Engine:
    """Raise ConfigError naming the setting if the engine cannot be built from it."""
    shared: dict[str, Any] = {
        "kv_blocks": config.kv_blocks,
        "kv_block_tokens": config.kv_block_tokens,
        "max_batch_streams": config.max_batch_streams,
        "prefill_chunk_tokens": config.prefill_chunk_tokens,
        "context_tokens": config.context_tokens,
        "host_kv_bytes": config.host_kv_bytes,
        "admission_free_share": config.admission_free_share,
        "reclaim": config.reclaim or "any",
        "buffer_aware": config.buffer_aware is not False,
    }
    if config.kind == "scripted":
        from sluiceway.engine.scripted import ScriptedEngine

        try:
            return ScriptedEngine(
                step_s=config.step_s,
                step_per_stream_s=config.step_per_stream_s,
                step_per_prefill_token_s=config.step_per_prefill_token_s,
                step_per_swapped_block_s=config.step_per_swapped_block_s,
                kv_bytes_per_token=config.kv_bytes_per_token,
                script=config.script,
                answer_tokens=config.answer_tokens,
                **shared,
            )
        except ValueError as error:
            raise ConfigError(f"engine: {error}") from None
    if model_dir is None:
        raise ConfigError("engine.model_dir: missing; the torch engine needs a model directory")
    from sluiceway.engine.model_files import ModelLoadError
    from sluiceway.engine.torch_engine import TorchEngine

    try:
        return TorchEngine(model_dir, device=config.device, dtype=config.dtype, **shared)
    except (ModelLoadError, ValueError) as error:
        raise ConfigError(f"engine: {error}") from None
