from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sluiceway.engine.protocol import EngineRequest, SamplingParams, TokenEvent


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialised Llama with grouped heads and a byte-level tokenizer with a few merges."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=272, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, bos_token_id=270, eos_token_id=271,
        initializer_range=0.5, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "TokenizersBackend", "eos_token": "<end>", "bos_token": "<start>"})
    )
    return directory


def byte_level_tokenizer():
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "a"), ("Ã", "©"), ("ð", "Ł"), ("ðŁ", "ĺ")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [f"<extra {index}>" for index in range(8)]
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in names])
    tokenizer.add_special_tokens(["<start>", "<end>"])
    return tokenizer


@pytest.fixture
def request_of() -> Callable[..., EngineRequest]:
    def make(request_id: str, prompt, **sampling) -> EngineRequest:
        sampling.setdefault("temperature", 0.0)
        return EngineRequest(request_id=request_id, prompt_token_ids=tuple(prompt), sampling=SamplingParams(**sampling))

    return make


class Collected:
    """Runs an engine and keeps what it says of each request."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.token_ids: dict[str, list[int]] = {}
        self.text: dict[str, bytes] = {}
        self.reasons: dict[str, list[str]] = {}

    def step(self) -> list[TokenEvent]:
        events = self.engine.step()
        for event in events:
            assert event.request_id not in self.reasons, "an event after the last one"
            self.token_ids.setdefault(event.request_id, []).extend(event.token_ids)
            self.text[event.request_id] = self.text.get(event.request_id, b"") + event.text
            if event.finish_reason is not None:
                self.reasons.setdefault(event.request_id, []).append(event.finish_reason.value)
        return events

    def run(self, limit: int = 5000) -> Collected:
        while self.engine.has_work():
            limit -= 1
            assert limit > 0, "no progress"
            self.step()
        return self


@pytest.fixture
def collect() -> Callable[..., Collected]:
    return Collected
