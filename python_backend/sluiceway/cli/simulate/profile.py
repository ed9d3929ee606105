"""The machine that a simulation runs on: what a step costs, how much KV there is, how the chain buffers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path

from sluiceway.cli.simulate.figures import Targets
from sluiceway.engine.cost import StepCost
from sluiceway.engine.kv_pool import host_block_count


class ProfileError(ValueError):
    """What is wrong with a profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """base_s to per_swapped_block_s: see engine.cost.StepCost. kv_blocks to admission_free_share: the engine's options.

    client_buffer_bytes: what a client takes in unread; it returns that in lumps of client_lump_bytes.
    record_s: time between Envoy's records. lump_tokens: tokens of a stream that the core is told of at once, at
    least: 1 is as the runtime does it, more is faster and coarser. per_s: arrivals a second of a drawn trace.
    ttft_s, tpot_s: the targets. Times in seconds.
    """

    name: str
    base_s: float
    per_stream_s: float
    per_prefill_token_s: float
    per_swapped_block_s: float
    kv_blocks: int
    kv_block_tokens: int = 16
    kv_bytes_per_token: int = 131_072
    host_kv_bytes: int = 0
    max_batch_streams: int
    prefill_chunk_tokens: int
    admission_free_share: float = 0.02  # as shipped
    spool_bytes: int = 64 << 20
    text_bytes_per_token: int = 5
    client_buffer_bytes: int = 16_384
    client_lump_bytes: int = 4096
    envoy_buffer_bytes: int = 65_536
    record_s: float = 0.1
    lump_tokens: int = 1
    per_s: float
    ttft_s: float
    tpot_s: float

    def __post_init__(self) -> None:
        may_be_zero = (
            "per_stream_s",
            "per_prefill_token_s",
            "per_swapped_block_s",
            "host_kv_bytes",
            "admission_free_share",
            "spool_bytes",
        )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "name":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ProfileError(f"profile {self.name}: {field.name} is {value!r}, must be a number")
            if field.type == "int" and not isinstance(value, int):
                raise ProfileError(f"profile {self.name}: {field.name} is {value!r}, must be a whole number")
            if value < 0 or (value == 0 and field.name not in may_be_zero):
                raise ProfileError(f"profile {self.name}: {field.name} is {value!r}, is too small")

        if self.admission_free_share >= 1:
            raise ProfileError(
                f"profile {self.name}: admission_free_share is {self.admission_free_share}, is too large"
            )
        try:
            _ = self.host_blocks
        except ValueError as error:
            raise ProfileError(f"profile {self.name}: {error}") from None

    @property
    def host_blocks(self) -> int:
        return host_block_count(self.host_kv_bytes, self.kv_bytes_per_token * self.kv_block_tokens)

    @property
    def cost(self) -> StepCost:
        return StepCost(
            base_s=self.base_s,
            per_stream_s=self.per_stream_s,
            per_prefill_token_s=self.per_prefill_token_s,
            per_swapped_block_s=self.per_swapped_block_s,
        )

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.kv_block_tokens

    @property
    def targets(self) -> Targets:
        return Targets(ttft_s=self.ttft_s, tpot_s=self.tpot_s)


# From data sheets, not measured by us: an 8B model in 8 bits on a card with 24 GB at 1 TB/s. Weights are read
# once a step (8 GB: 8 ms), each stream's KV beside them (128 KiB a token, some 400 tokens: 50 us); prefill
# 16 GFLOP a token at half of 300 TFLOPS; 12 GB left for KV; PCIe 4 moves a block of 2 MiB in 0.1 ms, on a stream
# of its own beside the step (engine/kv_host.py), of which a fifth is charged to the step.
_GPU = Profile(
    name="gpu",
    base_s=0.009,
    per_stream_s=50e-6,
    per_prefill_token_s=100e-6,
    per_swapped_block_s=20e-6,
    kv_blocks=6000,
    host_kv_bytes=8 << 30,
    max_batch_streams=256,
    prefill_chunk_tokens=512,
    lump_tokens=24,
    per_s=24.0,  # about what it can serve
    ttft_s=2.0,
    tpot_s=0.05,
)
# What `bench policy` sets its scripted engine to.
_BENCH = Profile(
    name="bench",
    base_s=0.025,
    per_stream_s=0.0005,
    per_prefill_token_s=50e-6,
    per_swapped_block_s=100e-6,
    kv_blocks=256,
    host_kv_bytes=64 << 20,
    kv_bytes_per_token=8192,
    max_batch_streams=8,
    prefill_chunk_tokens=128,
    per_s=1.0,
    ttft_s=2.0,
    tpot_s=0.08,
)
PROFILES = {profile.name: profile for profile in (_GPU, _BENCH)}


def load(name: str) -> Profile:
    """A named profile, or a JSON file: an object with a Profile's fields, "base" naming one to start from.

    Raises ProfileError for anything else, OSError for a file that cannot be read.
    """
    if name in PROFILES:
        return PROFILES[name]
    path = Path(name)
    if path.suffix != ".json":
        raise ProfileError(f"profile is {name!r}, must be {', '.join(PROFILES)} or a .json file")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ProfileError(f"{path}: not a JSON object")
    base = values.pop("base", None)
    values.setdefault("name", path.stem)
    known = {field.name for field in fields(Profile)}
    if unknown := sorted(set(values) - known):
        raise ProfileError(f"{path}: unknown field {unknown[0]!r}")
    if base is not None and base not in PROFILES:
        raise ProfileError(f"{path}: base is {base!r}, must be one of {', '.join(PROFILES)}")
    try:
        return replace(PROFILES[base], **values) if base else Profile(**values)
    except TypeError as error:
        raise ProfileError(f"{path}: {error}") from None
