"""The answers that a reader must get, computed in this process without a server, a pause or a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluiceway.engine.protocol import Engine, EngineRequest, SamplingParams
from sluiceway.engine.scripted import ScriptedEngine, scripted_answer


@dataclass(frozen=True, slots=True)
class Answer:
    token_ids: tuple[int, ...]
    text: str


def scripted(config: Mapping[str, Any], prompts: Sequence[str], max_tokens: int) -> list[Answer]:
    """By the script itself: no engine runs."""
    script = config["engine"].get("script", "ascii")
    engine = ScriptedEngine()
    answers = (scripted_answer(engine.encode(prompt), max_tokens, script) for prompt in prompts)
    return [Answer(tuple(token_ids), text.decode(errors="replace")) for token_ids, text in answers]


def uninterrupted(engine: Engine, prompts: Sequence[str], max_tokens: int) -> list[Answer]:
    """Greedy answers of ``engine``, one prompt after the other."""
    return [_answer(engine, str(number), prompt, max_tokens) for number, prompt in enumerate(prompts)]


def _answer(engine: Engine, request_id: str, prompt: str, max_tokens: int) -> Answer:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    token_ids = tuple(engine.encode(prompt))
    engine.submit(EngineRequest(request_id=request_id, prompt_token_ids=token_ids, sampling=sampling))
    ids: list[int] = []
    text = bytearray()
    while engine.has_work():
        for event in engine.step():
            ids.extend(event.token_ids)
            text += event.text
    return Answer(tuple(ids), text.decode(errors="replace"))
