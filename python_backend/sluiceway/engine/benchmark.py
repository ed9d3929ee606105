"""What the engine does by itself, without Triton: speed, equality after pauses, cost of paused requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from sluiceway.engine.batching import BatchingEngine
from sluiceway.engine.protocol import EngineRequest, SamplingParams
from sluiceway.engine.scripted import ScriptedEngine
from sluiceway.engine.torch_engine import TorchEngine

Progress = Callable[[str], None]

QUESTIONS = (
    "Tell me about rivers.",
    "What is a water gate?",
    "Write a poem about the sea.",
    "List the primes below 50.",
    "Explain flow control in TCP.",
    "Who wrote Hamlet?",
    "Describe a garden in spring.",
    "How do planes fly?",
)
PAUSED = 1000
_STEP_LIMIT = 20_000


def run_engine_benchmark(model_dir: Path | str, quick: bool, progress: Progress) -> dict[str, float]:
    """Speeds in tokens/s, the rest ratios and counts. ``quick``: fewer tokens and rounds, the same keys."""
    progress("loading the model")
    engine = TorchEngine(model_dir, kv_blocks=1024)
    prompts = [_chat(engine, question) for question in QUESTIONS]
    results: dict[str, float] = {}
    results |= _speed(engine, Path(model_dir), prompts, tokens=24 if quick else 64, rounds=3, progress=progress)
    progress("pause and resume against uninterrupted answers")
    results |= _pauses(engine, prompts[: 4 if quick else 8], tokens=32 if quick else 96)
    progress("a long prompt beside a decoding stream")
    results["longest_decode_gap_in_chunks"] = _longest_gap(engine, prompts[0])
    progress(f"{PAUSED} paused requests")
    scripted = _paused_ratio(lambda: ScriptedEngine(step_s=0, kv_blocks=2048), streams=8, steps=2000)
    results["paused_step_ratio_scripted"] = scripted
    real = _paused_ratio(lambda: TorchEngine(model_dir, kv_blocks=1100), streams=4, steps=40 if quick else 120)
    results["paused_step_ratio_torch"] = real
    results["paused_step_ratio"] = max(scripted, real)
    return results


def _chat(engine: TorchEngine, question: str) -> tuple[int, ...]:
    message = [{"role": "user", "content": question}]
    text = engine.tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return tuple(engine.encode(text))


def _submit(engine: BatchingEngine, name: str, prompt: tuple[int, ...], tokens: int) -> None:
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    engine.submit(EngineRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling))


def _drain(engine: BatchingEngine, answers: dict[str, list[int]]) -> None:
    for _ in range(_STEP_LIMIT):
        if not engine.has_work():
            return
        _step(engine, answers)
    raise RuntimeError(f"engine still busy after {_STEP_LIMIT} steps")


def _step(engine: BatchingEngine, answers: dict[str, list[int]]) -> None:
    for event in engine.step():
        answers.setdefault(event.request_id, []).extend(event.token_ids)


def _decode_rate(engine: TorchEngine, prompts: list[tuple[int, ...]], tokens: int) -> tuple[float, list[list[int]]]:
    """Tokens/s of all streams together once each has its first token, and the answers."""
    answers: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        _submit(engine, str(index), prompt, tokens)
    while len(answers) < len(prompts):
        _step(engine, answers)
    before = sum(map(len, answers.values()))
    started = time.perf_counter()
    _drain(engine, answers)
    rate = (sum(map(len, answers.values())) - before) / (time.perf_counter() - started)
    return rate, [answers[str(index)] for index in range(len(prompts))]


def _speed(
    engine: TorchEngine,
    model_dir: Path,
    prompts: list[tuple[int, ...]],
    *,
    tokens: int,
    rounds: int,
    progress: Progress,
) -> dict[str, float]:
    from transformers import AutoModelForCausalLM

    peer: Any = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=torch.float32).eval()
    ones, eights, peers = [], [], []
    differing = 0
    for turn in range(rounds):
        progress(f"speed, round {turn + 1} of {rounds}")
        # Beside each other in every round, so that a busy machine slows all three.
        rate, alone = _decode_rate(engine, prompts[:1], tokens)
        ones.append(rate)
        peers.append(_peer_rate(peer, prompts[0], tokens))
        rate, together = _decode_rate(engine, prompts, tokens)
        eights.append(rate)
        differing += alone[0] != together[0]
    return {
        "tokens_per_s_1": median(ones),
        "tokens_per_s_8": median(eights),
        "batch_speedup_8": median(eight / one for eight, one in zip(eights, ones, strict=True)),
        "transformers_tokens_per_s": median(peers),
        "single_stream_ratio": median(one / other for one, other in zip(ones, peers, strict=True)),
        "batch_texts_differ": differing,
    }


class _FirstToken:
    """A transformers streamer that notes when decoding began: it is given the prompt, then each token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _peer_rate(peer: Any, prompt: tuple[int, ...], tokens: int) -> float:
    """Decode tokens/s of transformers' own greedy generate."""
    clock = _FirstToken()
    token_ids = torch.tensor([prompt])
    with torch.inference_mode():
        peer.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
            streamer=clock,
        )
    decoded = clock.times[1:]
    return (len(decoded) - 1) / (decoded[-1] - decoded[0])


def _pauses(engine: TorchEngine, prompts: list[tuple[int, ...]], tokens: int) -> dict[str, float]:
    """How many greedy answers changed through a pause halfway, with KV kept and with KV dropped."""
    wanted = _decode_rate(engine, prompts, tokens)[1]
    results: dict[str, float] = {}
    for key, release in (("pause_hold_texts_differ", False), ("pause_recompute_texts_differ", True)):
        answers: dict[str, list[int]] = {}
        for index, prompt in enumerate(prompts):
            _submit(engine, str(index), prompt, tokens)
        names = [str(index) for index in range(len(prompts))]
        for turn in range(tokens // 2):
            _step(engine, answers)
            # One after the other is paused for a few steps, so that batches differ from the reference's.
            name = names[turn % len(names)]
            engine.pause(name)
            if release:
                engine.release_kv(name)
            _step(engine, answers)
            engine.resume(name)
        _drain(engine, answers)
        results[key] = sum(answers[name] != answer for name, answer in zip(names, wanted, strict=True))
    return results


def _longest_gap(engine: TorchEngine, prompt: tuple[int, ...]) -> int:
    """Most steps (each has at most one chunk) between two tokens of a stream while a long prompt prefills."""
    _submit(engine, "reader", prompt, 64)
    answers: dict[str, list[int]] = {}
    while not answers:
        _step(engine, answers)
    _submit(engine, "long", prompt * (1000 // len(prompt)), 1)
    longest = gap = 0
    while "long" not in answers:
        before = len(answers["reader"])
        _step(engine, answers)
        gap = gap + 1 if len(answers["reader"]) == before else 0
        longest = max(longest, gap + 1)
    engine.abort("reader")
    _drain(engine, answers)
    return longest


def _paused_ratio(make: Callable[[], BatchingEngine], *, streams: int, steps: int) -> float:
    """Median step time with many paused requests that hold KV, over that with none; steps taken in turn."""
    crowded, empty = make(), make()
    ignored: dict[str, list[int]] = {}
    for first in range(0, PAUSED, 32):
        names = [f"paused {number}" for number in range(first, min(first + 32, PAUSED))]
        for name in names:
            _submit(crowded, name, (1, 2), 8)
        _step(crowded, ignored)
        for name in names:
            crowded.pause(name)
    times: dict[BatchingEngine, list[float]] = {crowded: [], empty: []}
    for engine in times:
        for number in range(streams):
            _submit(engine, f"reader {number}", (3, 4, 5, 6), steps + 8)
        _step(engine, ignored)
    for _ in range(steps):
        for engine, taken in times.items():
            started = time.perf_counter()
            _step(engine, ignored)
            taken.append(time.perf_counter() - started)
    return median(times[crowded]) / median(times[empty])
