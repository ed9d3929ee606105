"""An engine without a model: same scheduler, KV accounting and events, a set time per step.

The answer depends on the prompt's token ids and the token's index alone, so a test or benchmark knows
it beforehand (``scripted_answer``), whatever was paused, recomputed or batched together.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable
from collections.abc import Sequence as Ids
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from sluiceway.engine.batching import BatchingEngine
from sluiceway.engine.calibration import Calibration
from sluiceway.engine.cost import StepCost
from sluiceway.engine.kv_pool import BlockPool, host_block_count
from sluiceway.engine.prices import Prices
from sluiceway.engine.protocol import TokenEvent
from sluiceway.engine.scheduler import Reclaim, Scheduler, StepPlan
from sluiceway.engine.scripted_kv import ScriptedKv

Script = Literal["ascii", "unicode"]

EOS_TOKEN_ID = 256
_FIRST_SCRIPT_ID = 257

_WORDS = (
    "river water stone bridge valley winter summer garden window market letter number answer question"
    " morning evening silver copper forest meadow harbour island village mountain thunder lantern paper"
    " the and over under through between slowly gently clearly almost never always"
)
_PHRASES = (
    "水門は流れを整える。",
    "闸门调节着水流。",
    "물이 천천히 흐른다. ",
    "👩‍👩‍👧‍👦 और पानी ",
    "🏳️‍🌈🧑🏽‍🚀🇯🇵 ",
    "e\u0301le\u0300ve n\u0303 a\u0308\u0323 ",
    "Ελληνικά και кириллица. ",
    "مرحبا بالعالم ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 😀😅🤷‍♀️ ",
    "สายน้ำไหลเอื่อย ",
)
# Every phrase is cut into this many pieces, mostly inside characters: 8 divides few of their lengths.
_PIECES = 8


def _cut(phrase: bytes) -> list[bytes]:
    edges = [len(phrase) * piece // _PIECES for piece in range(_PIECES + 1)]
    return [phrase[start:end] for start, end in pairwise(edges)]


_TOKENS: dict[str, list[bytes]] = {
    "ascii": [f"{word} ".encode() for word in _WORDS.split()],
    "unicode": [piece for phrase in _PHRASES for piece in _cut(phrase.encode())],
}
_RUN: dict[str, int] = {"ascii": 1, "unicode": _PIECES}


@lru_cache(maxsize=256)
def _prompt_key(prompt_token_ids: tuple[int, ...]) -> int:
    return zlib.crc32(b"".join(token_id.to_bytes(8, "little") for token_id in prompt_token_ids))


def _script_token(key: int, index: int, script: Script) -> int:
    """Token ``index`` of the answer: phrases in an order that the prompt decides, each piece by piece."""
    run = _RUN[script]
    phrase, piece = divmod(index, run)
    choice = zlib.crc32(phrase.to_bytes(8, "little"), key) % (len(_TOKENS[script]) // run)
    return _FIRST_SCRIPT_ID + choice * run + piece


def _token_bytes(token_id: int, script: Script) -> bytes:
    return b"" if token_id == EOS_TOKEN_ID else _TOKENS[script][token_id - _FIRST_SCRIPT_ID]


def scripted_answer(prompt_ids: Ids[int], n: int, script: Script = "ascii") -> tuple[list[int], bytes]:
    """The first ``n`` token ids of the answer to ``prompt_ids`` and their bytes together."""
    key = _prompt_key(tuple(prompt_ids))
    token_ids = [_script_token(key, index, script) for index in range(n)]
    return token_ids, b"".join(_token_bytes(token_id, script) for token_id in token_ids)


class _ScriptText:
    """Each token has its bytes; nothing is ever kept back."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def feed(self, token_id: int) -> bytes:
        return _token_bytes(token_id, self._script)

    def flush(self) -> bytes:
        return b""


def _known_rates(cost: StepCost, chunk_tokens: int) -> Calibration:
    """Where prefill or copies cost nothing beside the step itself, the step still bounds their rate."""

    def rate(unit_s: float) -> float:
        if unit_s:
            return 1 / unit_s
        return chunk_tokens / cost.base_s if cost.base_s else 0.0

    return Calibration(
        step_s=cost.base_s,
        prefill_tokens_per_s=rate(cost.per_prefill_token_s),
        swap_blocks_per_s=rate(cost.per_swapped_block_s),
    )


class ScriptedEngine(BatchingEngine):
    """step_s: what any step takes, in seconds; step_per_stream_s, step_per_prefill_token_s and
    step_per_swapped_block_s: what its work adds (engine/cost.py). All 0 is as fast as it goes.

    answer_tokens: the script ends with an end-of-sequence token after so many (None: never), unless
    min_tokens or ignore_eos say otherwise. context_tokens: None for what the KV pool holds.
    kv_bytes_per_token: what a token's KV would take, so that host_kv_bytes (host memory for swapped
    KV; 0: no swapping) means something. check_kv: for tests, keep what each block would hold and check
    it at every read (engine/scripted_kv.py). admission_free_share, reclaim, buffer_aware: as the Scheduler's.
    """

    def __init__(
        self,
        *,
        step_s: float = 0.02,
        script: Script = "ascii",
        kv_blocks: int = 512,
        kv_block_tokens: int = 16,
        max_batch_streams: int = 32,
        prefill_chunk_tokens: int = 128,
        answer_tokens: int | None = None,
        context_tokens: int | None = None,
        step_per_stream_s: float = 0.0,
        step_per_prefill_token_s: float = 0.0,
        step_per_swapped_block_s: float = 0.0,
        kv_bytes_per_token: int = 1024,
        host_kv_bytes: int = 0,
        admission_free_share: float = 0.0,
        reclaim: Reclaim = "any",
        buffer_aware: bool = True,
        check_kv: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if script not in _TOKENS:
            raise ValueError(f"script is {script!r}, must be one of {', '.join(_TOKENS)}")
        self._cost = StepCost(
            base_s=step_s,
            per_stream_s=step_per_stream_s,
            per_prefill_token_s=step_per_prefill_token_s,
            per_swapped_block_s=step_per_swapped_block_s,
        )
        if kv_bytes_per_token < 1:
            raise ValueError(f"kv_bytes_per_token must be at least 1, got {kv_bytes_per_token}")
        super().__init__(
            Scheduler(
                BlockPool(kv_blocks),
                block_tokens=kv_block_tokens,
                max_batch_streams=max_batch_streams,
                prefill_chunk_tokens=prefill_chunk_tokens,
                host_blocks=host_block_count(host_kv_bytes, kv_bytes_per_token * kv_block_tokens),
                admission_free_share=admission_free_share,
                reclaim=reclaim,
                buffer_aware=buffer_aware,
            ),
            frozenset({EOS_TOKEN_ID}),
            _known_rates(self._cost, prefill_chunk_tokens),
        )
        self._scheduler.set_prices(
            Prices.for_pool(
                kv_blocks,
                kv_block_tokens,
                prefill_token_s=step_per_prefill_token_s,
                swapped_block_s=step_per_swapped_block_s if self._scheduler.host_pool else math.inf,
            )
        )
        self._script: Script = script
        self._answer_tokens = answer_tokens
        self._context_tokens = min(context_tokens or kv_blocks * kv_block_tokens, kv_blocks * kv_block_tokens)
        self._kv = ScriptedKv(self._scheduler.pool, self._scheduler.host_pool, kv_block_tokens) if check_kv else None
        self._sleep = sleep
        self._step_takes_s = 0.0

    @property
    def context_tokens(self) -> int:
        return self._context_tokens

    def encode(self, text: str) -> list[int]:
        """One token per UTF-8 byte. Lone surrogates become question marks."""
        return list(text.encode(errors="replace"))

    def step(self) -> list[TokenEvent]:
        started = time.monotonic()
        self._step_takes_s = 0.0
        events = super().step()
        if self._step_takes_s:
            self._sleep(max(0.0, started + self._step_takes_s - time.monotonic()))
        return events

    def _compute(self, plan: StepPlan) -> list[int]:
        if self._kv is not None:
            self._kv.compute(plan)
        self._step_takes_s = self._cost.seconds(plan)
        # Prefill and copy rates are known exactly; only the mean step has to be followed.
        computing_s = self._step_takes_s - self._cost.per_swapped_block_s * plan.swapped_blocks
        self._calibration.observe_step(computing_s, decodes=len(plan.sampled) + len(plan.prefill), prefill_tokens=0)
        token_ids = []
        for sequence in plan.sampled:
            sampling = sequence.request.sampling
            ends = self._answer_tokens is not None and sequence.generated >= self._answer_tokens
            if ends and not sampling.ignore_eos and self._may_stop(sequence):
                token_ids.append(EOS_TOKEN_ID)
            else:
                token_ids.append(
                    _script_token(_prompt_key(sequence.request.prompt_token_ids), sequence.generated, self._script)
                )
        return token_ids

    def _new_detokenizer(self) -> _ScriptText:
        return _ScriptText(self._script)
