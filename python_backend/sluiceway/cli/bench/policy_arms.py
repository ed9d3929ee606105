"""The arms of ``bench policy``: one backend, four configurations, and the machine they all run on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sluiceway.cli.bench.plans import SMALL_WINDOW
from sluiceway.cli.simulate.profile import Profile
from sluiceway.cli.triton import merge

# What each arm changes in sluiceway.yaml. But for ours, the order is first come first served.
ARMS: Mapping[str, Mapping[str, Any]] = {
    # As every other engine: generate to the last token whatever the client reads.
    "run_to_completion": {"engine": {"buffer_aware": False}, "flow_control": {"mode": "run_to_completion"}},
    # Pause above the watermark and keep the KV, whoever wants it.
    "hold": {
        "engine": {"buffer_aware": False, "reclaim": "none"},
        "flow_control": {"cushion": None},
        "policy": {"mode": "hold"},
    },
    # Pause, then drop the KV after a fixed time.
    "drop": {"engine": {"buffer_aware": False}, "flow_control": {"cushion": None}, "policy": {"mode": "drop"}},
    # As shipped.
    "ours": {},
}


# A step costs what a model of about 8 B parameters does on one GPU, slowed down so that its frames do not load
# a machine of two cores: weights are read once a step, each stream's KV beside them; 10,000 prompt tokens a second;
# a block of 16 tokens (2 MiB) crosses to the host in 0.1 ms. Host memory for as much KV as the device has.
MACHINE = Profile(
    name="bench policy",
    base_s=0.020,
    per_stream_s=0.00025,
    per_prefill_token_s=0.0001,
    per_swapped_block_s=0.0001,
    kv_blocks=256,
    kv_block_tokens=16,
    kv_bytes_per_token=131_072,
    admission_free_share=0.02,  # as shipped
    max_batch_streams=32,
    prefill_chunk_tokens=128,
    client_buffer_bytes=SMALL_WINDOW,
    client_lump_bytes=SMALL_WINDOW,
    per_s=2.0,
    ttft_s=2.0,
    tpot_s=0.05,  # 20 tokens a second, twice what people read
)


def blocks(tokens: float) -> int:
    """KV blocks that hold so many tokens."""
    return math.ceil(tokens / MACHINE.kv_block_tokens)


def streams_at_once(machine: Profile, per_s: float, output_tokens: float) -> float:
    """How many streams would be open if each were served at once (Little's law): arrivals times service time.

    The step grows with them, so: n = per_s x tokens x step(n). Raises ValueError where no n is enough.
    """
    share = per_s * output_tokens * machine.per_stream_s
    if share >= 1:
        raise ValueError(f"{per_s} requests of {output_tokens} tokens a second: more than any batch can do")
    return per_s * output_tokens * machine.base_s / (1 - share)


def engine(machine: Profile) -> dict[str, Any]:
    """The section ``engine`` of the configuration."""
    return {
        "kind": "scripted",
        "step_s": machine.base_s,
        "step_per_stream_s": machine.per_stream_s,
        "step_per_prefill_token_s": machine.per_prefill_token_s,
        "step_per_swapped_block_s": machine.per_swapped_block_s,
        "kv_blocks": machine.kv_blocks,
        "kv_block_tokens": machine.kv_block_tokens,
        "kv_bytes_per_token": machine.kv_bytes_per_token,
        "host_kv_bytes": machine.host_kv_bytes,
        "admission_free_share": machine.admission_free_share,
        "max_batch_streams": machine.max_batch_streams,
        "prefill_chunk_tokens": machine.prefill_chunk_tokens,
    }


def sized(machine: Profile, *, kv_blocks: int, **changes: Any) -> Profile:
    """``machine`` with so much KV on the device, and as much again on the host."""
    host = kv_blocks * machine.kv_block_tokens * machine.kv_bytes_per_token
    return replace(machine, kv_blocks=kv_blocks, host_kv_bytes=host, **changes)


def config(arm: str, machine: Profile) -> dict[str, Any]:
    """What ``arm`` runs with: the machine, and the arm's own settings over it."""
    base = {"engine": engine(machine), "admission": {"max_streams": 2048}}
    return merge(base, ARMS[arm])
