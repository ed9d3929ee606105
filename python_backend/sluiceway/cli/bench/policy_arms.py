"""The arms of ``bench policy``: one backend, four configurations, and the machine they all run on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluiceway.cli.triton import merge

# What each arm changes in sluiceway.yaml.
ARMS: Mapping[str, Mapping[str, Any]] = {
    # Every other engine: generate to the last token whatever the client does.
    "run_to_completion": {"flow_control": {"mode": "run_to_completion"}},
    # Pause above the watermark, keep the KV.
    "hold": {"flow_control": {"release_kv_after_s": None}},
    # Pause, then drop the KV after a time.
    "drop": {},
    "ours": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Seconds of a step from its batch: what a model costs of about 8 B parameters on one GPU.

    Weights are read once a step, each stream's KV beside them; a prompt token is computed at 10,000/s,
    a block of 16 tokens (2 MiB) copied at 20 GB/s one way.
    """

    step_s: float = 0.020
    step_per_stream_s: float = 0.00025
    step_per_prefill_token_s: float = 0.0001
    step_per_swapped_block_s: float = 0.0001
    kv_bytes_per_token: int = 131_072
    kv_block_tokens: int = 16
    max_batch_streams: int = 32
    prefill_chunk_tokens: int = 128

    def step(self, streams: float) -> float:
        """Seconds of a step that decodes ``streams``."""
        return self.step_s + self.step_per_stream_s * streams

    def blocks(self, tokens: float) -> int:
        return math.ceil(tokens / self.kv_block_tokens)


MACHINE = Machine()


def streams_at_once(machine: Machine, per_s: float, output_tokens: float) -> float:
    """How many streams would be open if each were served at once (Little's law): arrivals times service time.

    The step grows with them, so: n = per_s x tokens x step(n). Raises ValueError where no n is enough.
    """
    share = per_s * output_tokens * machine.step_per_stream_s
    if share >= 1:
        raise ValueError(f"{per_s} requests of {output_tokens} tokens a second: more than any batch can do")
    return per_s * output_tokens * machine.step_s / (1 - share)


def engine(machine: Machine, *, kv_blocks: int, max_batch_streams: int | None = None) -> dict[str, Any]:
    """The section ``engine`` of the configuration."""
    return {
        "kind": "scripted",
        "step_s": machine.step_s,
        "kv_blocks": kv_blocks,
        "kv_block_tokens": machine.kv_block_tokens,
        "max_batch_streams": max_batch_streams or machine.max_batch_streams,
        "prefill_chunk_tokens": machine.prefill_chunk_tokens,
    }


def config(arm: str, engine_section: Mapping[str, Any]) -> dict[str, Any]:
    """What ``arm`` runs with: ``engine_section``, and the arm's own settings over it."""
    base = {"engine": dict(engine_section), "admission": {"max_streams": 2048}}
    return merge(base, ARMS[arm])
