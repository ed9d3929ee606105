"""The engine with a real model: any decoder-only transformers model whose attention can be replaced."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import torch

from sluiceway.engine.batching import BatchingEngine, Detokenizer
from sluiceway.engine.calibration import Calibration
from sluiceway.engine.detokenizer import TokenText
from sluiceway.engine.kv_host import HostKv, kv_block_bytes
from sluiceway.engine.kv_pool import BlockPool, host_block_count
from sluiceway.engine.model_files import ModelLoadError, find_model, load_model
from sluiceway.engine.paged_attention import ATTENTION_NAME, KvStore, UnsupportedAttentionError, build_batch
from sluiceway.engine.prices import Prices
from sluiceway.engine.protocol import EngineRequest, TokenEvent
from sluiceway.engine.sampling import SamplingRow, sample
from sluiceway.engine.scheduler import Reclaim, Scheduler, StepPlan
from sluiceway.engine.sequence import Sequence

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchEngine(BatchingEngine):
    """Greedy answers depend on the batch by no more than float noise, sampled ones on their seed."""

    def __init__(
        self,
        model_dir: Path | str,
        *,
        device: str = "auto",
        dtype: str = "float32",
        kv_blocks: int = 512,
        kv_block_tokens: int = 16,
        max_batch_streams: int = 32,
        prefill_chunk_tokens: int = 128,
        context_tokens: int | None = None,
        host_kv_bytes: int = 0,
        admission_free_share: float = 0.0,
        reclaim: Reclaim = "any",
        buffer_aware: bool = True,
    ) -> None:
        """Load and try the model. device "auto" is CUDA if there is one, else the CPU.

        context_tokens: an upper limit beside the model's own and the KV pool's. host_kv_bytes: host memory for
        swapped KV, 0 for none. Raises ModelLoadError; ValueError for a wrong option.
        """
        if dtype not in _DTYPES:
            raise ValueError(f"dtype is {dtype!r}, must be one of {', '.join(_DTYPES)}")
        scheduler = Scheduler(
            BlockPool(kv_blocks),
            block_tokens=kv_block_tokens,
            max_batch_streams=max_batch_streams,
            prefill_chunk_tokens=prefill_chunk_tokens,
            admission_free_share=admission_free_share,
            reclaim=reclaim,
            buffer_aware=buffer_aware,
        )
        files = find_model(Path(model_dir))
        self._device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        if self._device.type == "cpu":
            # More threads than cores this process may use only wait for each other.
            torch.set_num_threads(len(os.sched_getaffinity(0)))
        model, self._tokenizer = load_model(files, dtype=_DTYPES[dtype], attention=ATTENTION_NAME)
        self._model: Any = model.to(self._device)
        super().__init__(scheduler, _eos_token_ids(self._model, self._tokenizer))
        self._copies_s = 0.0
        self._work = (0, 0)  # decodes and prefill tokens of the step under way
        self._text = TokenText(self._tokenizer.backend_tokenizer)
        self._store = KvStore(kv_blocks, kv_block_tokens)
        limits = [scheduler.capacity_tokens]
        model_limit = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        limits += [limit for limit in (model_limit, context_tokens) if limit]
        self._context_tokens = min(limits)
        self._try(files.directory)
        host_blocks = host_block_count(host_kv_bytes, kv_block_bytes(self._store))
        self._host: HostKv | None = None
        if host_blocks:
            self._host = HostKv(self._store, host_blocks)
            scheduler.set_host_pool(BlockPool(host_blocks))
        self._calibration = self._measure(min(prefill_chunk_tokens, self._context_tokens), kv_block_tokens)
        self._reprice()

    @property
    def context_tokens(self) -> int:
        return self._context_tokens

    @property
    def tokenizer(self) -> Any:
        """The model's transformers tokenizer (chat template, decode)."""
        return self._tokenizer

    def encode(self, text: str) -> list[int]:
        token_ids: list[int] = self._tokenizer.encode(text)
        return token_ids

    def step(self) -> list[TokenEvent]:
        started = time.perf_counter()
        self._copies_s = 0.0
        self._work = (0, 0)
        events = super().step()
        decodes, prefill_tokens = self._work
        seconds = time.perf_counter() - started - self._copies_s
        self._calibration.observe_step(seconds, decodes=decodes, prefill_tokens=prefill_tokens)
        if prefill_tokens:
            self._reprice()
        return events

    @torch.inference_mode()
    def _compute(self, plan: StepPlan) -> list[int]:
        self._copy(plan)
        self._work = len(plan.decode), plan.prefill_tokens
        decodes = len(plan.decode)
        # Chunks that give a token come first, so that the rows to sample lie in the order of plan.sampled.
        work = [(sequence, 1) for sequence in plan.decode]
        work += [(chunk.sequence, chunk.length) for chunk in plan.prefill if chunk.is_last]
        sampled = len(work)
        work += [(chunk.sequence, chunk.length) for chunk in plan.prefill if not chunk.is_last]
        if not work:
            return []
        logits = self._forward(work, decodes, max(sampled, 1))
        if not sampled:
            return []
        return sample(logits, [self._sampling_row(sequence) for sequence in plan.sampled])

    def _copy(self, plan: StepPlan) -> None:
        if self._host is None:
            return
        self._host.before_step()
        if not plan.swapped_blocks:
            return
        started = time.perf_counter()
        self._host.start()
        for copy in plan.swap_out:
            self._host.copy_out(copy.device_blocks, copy.host_blocks)
        for copy in plan.swap_in:
            self._host.copy_in(copy.host_blocks, copy.device_blocks)
        if self._device.type == "cpu":
            # Elsewhere this is only the time to start them; the measured rate stands.
            self._copies_s = time.perf_counter() - started
            self._calibration.observe_swap(self._copies_s, blocks=plan.swapped_blocks)

    def _forward(self, work: list[tuple[Sequence, int]], decodes: int, sampled: int) -> torch.Tensor:
        """Logits [sampled, vocabulary] of the last token of each of the first ``sampled`` pieces of work."""
        batch = build_batch(self._store, work, decodes, self._device)
        output = self._model(
            input_ids=batch.token_ids,
            position_ids=batch.positions,
            use_cache=False,
            logits_to_keep=batch.sample_rows[:sampled],
            paged_batch=batch,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _sampling_row(self, sequence: Sequence) -> SamplingRow:
        params = sequence.request.sampling
        banned = () if params.ignore_eos or self._may_stop(sequence) else tuple(self._eos_token_ids)
        return SamplingRow(params, self._outputs[sequence.request_id].rng, banned)

    def _new_detokenizer(self) -> Detokenizer:
        return self._text.start()

    @torch.inference_mode()
    def _try(self, directory: Path) -> None:
        """One token through the model: makes the KV tensors, and finds out here what will not work."""
        probe = Sequence(request=EngineRequest(request_id="", prompt_token_ids=(0,)), arrival=0, token_ids=[0])
        probe.blocks = [0]
        try:
            logits = self._forward([(probe, 1)], 1, 1)
        except (UnsupportedAttentionError, TypeError) as error:
            raise ModelLoadError(f"model_dir {directory}: {error}") from error
        layers = self._model.config.get_text_config().num_hidden_layers
        if self._store.layer_count != layers or logits.shape[0] != 1:
            raise ModelLoadError(
                f"model_dir {directory}: {self._store.layer_count} of {layers} layers use the attention interface"
            )

    @torch.inference_mode()
    def _measure(self, chunk_tokens: int, block_tokens: int) -> Calibration:
        """Time a decode step and a prefill chunk (each twice, the first warms up) and a copy."""
        ids = [0] * chunk_tokens
        probe = Sequence(request=EngineRequest(request_id="", prompt_token_ids=tuple(ids)), arrival=0, token_ids=ids)
        probe.blocks = list(range(-(-chunk_tokens // block_tokens)))

        def seconds(tokens: int) -> float:
            best = float("inf")
            for _ in range(2):
                started = time.perf_counter()
                self._forward([(probe, tokens)], int(tokens == 1), 1).sum().item()
                best = min(best, time.perf_counter() - started)
            return best

        step_s = seconds(1)
        calibration = Calibration(step_s=step_s, swap_blocks_per_s=0.0 if self._host is None else self._host.measure())
        calibration.observe_step(seconds(chunk_tokens), decodes=0, prefill_tokens=chunk_tokens)
        return calibration

    def _reprice(self) -> None:
        rates, scheduler = self._calibration, self._scheduler
        if rates.prefill_tokens_per_s:
            copies = rates.swap_blocks_per_s if self._host is not None else 0.0
            scheduler.set_prices(
                Prices.for_pool(
                    scheduler.pool.total,
                    scheduler.block_tokens,
                    prefill_token_s=1 / rates.prefill_tokens_per_s,
                    swapped_block_s=1 / copies if copies else math.inf,
                )
            )


def _eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """All ids that end an answer: generation config first, then the tokenizer's."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    if configured is None:
        configured = tokenizer.eos_token_id
    if configured is None:
        return frozenset()
    return frozenset([configured] if isinstance(configured, int) else configured)
