"""Find and load what a model directory holds: config, weights, tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluiceway.engine.errors import EngineError

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


class ModelLoadError(EngineError):
    """A model directory cannot be served; the message names the directory and what is wrong."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """gguf_file: its name, if the directory holds a GGUF model instead of safetensors."""

    directory: Path
    gguf_file: str | None


def find_model(directory: Path) -> ModelFiles:
    """What kind of model lies in ``directory``. Raises ModelLoadError naming what is missing."""
    if not directory.is_dir():
        raise ModelLoadError(f"model_dir {directory}: no such directory")
    has_weights = any(any(directory.glob(pattern)) for pattern in _WEIGHTS)
    gguf = sorted(path.name for path in directory.glob("*.gguf"))
    if not has_weights and len(gguf) == 1:
        return ModelFiles(directory, gguf[0])
    if len(gguf) > 1 and not has_weights:
        raise ModelLoadError(f"model_dir {directory}: holds several GGUF files ({', '.join(gguf)}), must hold one")
    if not has_weights:
        raise ModelLoadError(f"model_dir {directory}: no weights (*.safetensors, pytorch_model.bin or one *.gguf)")
    for name in ("config.json", "tokenizer.json"):
        if not (directory / name).is_file():
            raise ModelLoadError(f"model_dir {directory}: no {name}")
    return ModelFiles(directory, None)


def load_model(files: ModelFiles, *, dtype: Any, attention: str) -> tuple[Any, Any]:
    """The transformers model (in evaluation mode, on the CPU) and its fast tokenizer.

    Nothing is fetched from anywhere, no code from the directory is run. Raises ModelLoadError.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = {"gguf_file": files.gguf_file} if files.gguf_file else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(files.directory), local_files_only=True, **source)
        model = AutoModelForCausalLM.from_pretrained(
            str(files.directory), local_files_only=True, dtype=dtype, attn_implementation=attention, **source
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        # Any of the many ways in which transformers says that a directory is not a model.
        raise ModelLoadError(f"model_dir {files.directory}: {error}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise ModelLoadError(f"model_dir {files.directory}: no fast tokenizer (tokenizer.json)")
    return model.eval(), tokenizer
