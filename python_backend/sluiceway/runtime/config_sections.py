"""The sections of ``sluiceway.yaml``, one class each, with their defaults and limits; ``spool`` is in config_spool.py.

Sizes in bytes, times in seconds. A rule between settings of one section stands with the section; rules
between sections are config.py's.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluiceway.core.limits import CushionLimits, Limits, Size
from sluiceway.core.policy import Mode
from sluiceway.core.policy_settings import PolicySettings

# Envoy takes 64 KiB a stream. What is sent beyond that waits in tritonserver, and responses waiting
# there when their clients leave crash Triton 24.10. The rest is headroom for protobuf and framing.
MAX_WINDOW_BYTES = 48 * 1024

Positive = Annotated[float, Field(gt=0, le=86_400)]
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]+:\d{1,5}$")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class EngineConfig(Section):
    """``kind`` chooses the engine; a setting that the chosen one does not know is not used."""

    kind: Literal["torch", "scripted"] = "torch"
    model_dir: str | None = None  # relative paths start at the configuration file's folder
    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    kv_blocks: int = Field(512, ge=1, le=10_000_000)
    kv_block_tokens: int = Field(16, ge=1, le=1024)
    max_batch_streams: int = Field(32, ge=1, le=4096)
    prefill_chunk_tokens: int = Field(128, ge=1, le=65_536)
    host_kv_bytes: int = Field(128 * 2**20, ge=0, le=2**44)  # 0: nothing is swapped
    admission_free_share: float = Field(0.02, ge=0, le=0.9)
    reclaim: Literal["any", "none"] | None = None  # None: as policy.mode says
    buffer_aware: bool | None = None  # None: as policy.mode says
    step_s: float = Field(0.02, ge=0, le=10)
    step_per_stream_s: float = Field(0.0, ge=0, le=10)
    step_per_prefill_token_s: float = Field(0.0, ge=0, le=10)
    step_per_swapped_block_s: float = Field(0.0, ge=0, le=10)
    kv_bytes_per_token: int = Field(1024, ge=1, le=2**30)  # scripted: what a token's KV would take
    script: Literal["ascii", "unicode"] = "ascii"
    answer_tokens: int | None = Field(None, ge=1, le=10_000_000)  # scripted: where its text ends; None: never
    context_tokens: int | None = Field(None, ge=2, le=10_000_000)  # None: what the model has


class SizeConfig(Section):
    bytes: int = Field(ge=1, le=2**40)
    tokens: int = Field(ge=1, le=2**40)
    frames: int = Field(ge=1, le=2**40)

    def size(self) -> Size:
        return Size(bytes=self.bytes, tokens=self.tokens, frames=self.frames)


def _size(size: Size) -> SizeConfig:
    return SizeConfig(bytes=size.bytes, tokens=size.tokens, frames=size.frames)


_DEFAULT = Limits()
_CUSHION = CushionLimits()


class CushionConfig(Section):
    """core.limits.CushionLimits."""

    high_s: Positive = _CUSHION.high_s
    low_s: Positive = _CUSHION.low_s
    quiet_s: Positive = _CUSHION.quiet_s
    min_tokens: int = Field(_CUSHION.min_tokens, ge=1, le=2**40)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low_s > self.high_s:
            raise ValueError(f"low_s ({self.low_s}) must not be above high_s ({self.high_s})")
        return self


class FlowControlConfig(Section):
    """core.limits.Limits and a mode. ``run_to_completion`` (the arm to compare with) pauses at nothing but
    spool.max_stream_bytes, which bounds what a reader that is stuck may pile up.
    """

    mode: Literal["bounded", "run_to_completion"] = "bounded"
    window: SizeConfig = _size(_DEFAULT.window)
    high: SizeConfig = _size(_DEFAULT.high)
    low: SizeConfig = _size(_DEFAULT.low)
    cushion: CushionConfig | None = CushionConfig()
    max_frame_bytes: int = Field(_DEFAULT.max_frame_bytes, ge=64, le=MAX_WINDOW_BYTES)
    merge_frames: int = Field(_DEFAULT.merge_frames, ge=1, le=2**20)
    max_silence_s: Positive = _DEFAULT.max_silence_s
    signal_timeout_s: Positive = _DEFAULT.signal_timeout_s
    drain_timeout_s: Positive = _DEFAULT.drain_timeout_s

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for unit in ("bytes", "tokens", "frames"):
            low, high = getattr(self.low, unit), getattr(self.high, unit)
            if low > high:
                raise ValueError(f"low.{unit} ({low}) must not be above high.{unit} ({high})")
        if self.window.bytes > MAX_WINDOW_BYTES:
            raise ValueError(
                f"window.bytes ({self.window.bytes}) must be at most {MAX_WINDOW_BYTES}: what Envoy does not "
                "take waits in tritonserver and crashes it when the client leaves"
            )
        if self.max_frame_bytes > self.window.bytes:
            raise ValueError(
                f"max_frame_bytes ({self.max_frame_bytes}) must be at most window.bytes ({self.window.bytes})"
            )
        return self

    def limits(
        self, frame_overhead_bytes: int, *, max_backlog_bytes: int | None = None, degrade_after_s: float | None = None
    ) -> Limits:
        """Limits of a request whose frames cost ``frame_overhead_bytes`` beside their text."""
        return Limits(
            window=self.window.size(),
            high=self.high.size(),
            low=self.low.size(),
            cushion=None if self.cushion is None else CushionLimits(**self.cushion.model_dump()),
            max_frame_bytes=self.max_frame_bytes,
            merge_frames=self.merge_frames,
            frame_overhead_bytes=frame_overhead_bytes,
            max_silence_s=self.max_silence_s,
            signal_timeout_s=self.signal_timeout_s,
            drain_timeout_s=self.drain_timeout_s,
            pausing=self.mode == "bounded",
            max_backlog_bytes=max_backlog_bytes,
            degrade_after_s=degrade_after_s,
        )


_POLICY = PolicySettings()


class PolicyConfig(Section):
    """core.policy_settings.PolicySettings, a mode, and how often a stream is looked at.

    "hold" and "drop" are arms to compare with: pause and keep the KV for ever, or drop it by the clock;
    both schedule first come, first served.
    """

    mode: Mode = "cost"
    review_s: Positive = 0.25
    max_per_turn: int = Field(16, ge=1, le=1024)
    grace_s: list[Positive] = Field(list(_POLICY.grace_s), min_length=1, max_length=16)
    max_silence_s: list[Positive] = Field(list(_POLICY.max_silence_s), min_length=1, max_length=16)
    min_drain_bytes_per_s: float = Field(_POLICY.min_drain_bytes_per_s, ge=0, le=2**40)
    min_dwell_s: float = Field(_POLICY.min_dwell_s, ge=0, le=86_400)
    margin: float = Field(_POLICY.margin, ge=0, le=1)
    run_ahead_max_tokens: int = Field(_POLICY.run_ahead_max_tokens, ge=0, le=10_000_000)
    low_free_share: float = Field(_POLICY.low_free_share, ge=0, le=1)
    wait_half_s: Positive = _POLICY.wait_half_s
    release_kv_after_s: Positive = _POLICY.release_kv_after_s  # mode "drop"

    @model_validator(mode="after")
    def _by_tier(self) -> Self:
        for name in ("grace_s", "max_silence_s"):
            values = getattr(self, name)
            if values != sorted(values):
                raise ValueError(f"{name} ({values}) must not fall from tier to tier")
        return self

    def settings(self) -> PolicySettings:
        return PolicySettings(
            grace_s=tuple(self.grace_s),
            max_silence_s=tuple(self.max_silence_s),
            min_drain_bytes_per_s=self.min_drain_bytes_per_s,
            min_dwell_s=self.min_dwell_s,
            margin=self.margin,
            run_ahead_max_tokens=self.run_ahead_max_tokens,
            low_free_share=self.low_free_share,
            wait_half_s=self.wait_half_s,
            release_kv_after_s=self.release_kv_after_s,
        )


class DegradedConfig(Section):
    """A reader that is silent for after_s may get a short answer, made anew, in place of the long one."""

    enabled: bool = False
    after_s: Positive = 20.0
    max_tokens: int = Field(64, ge=1, le=4096)


class AdmissionConfig(Section):
    """What may be open at once, and how large one request may be."""

    max_streams: int = Field(1024, ge=1, le=1_000_000)
    max_buffered_bytes: int = Field(256 * 2**20, ge=2**16, le=2**40)
    max_prompt_tokens: int = Field(4096, ge=1, le=10_000_000)
    max_prompt_bytes: int = Field(2**20, ge=1, le=2**28)
    max_tokens_limit: int = Field(65_536, ge=1, le=10_000_000)
    # A non-streamed answer leaves as one message, so it is bounded like a window.
    max_whole_answer_bytes: int = Field(32 * 1024, ge=64, le=MAX_WINDOW_BYTES)


class DeliveryConfig(Section):
    listen: Address = "127.0.0.1:18002"
    record_timeout_s: Positive = 3.0


class AdminConfig(Section):
    listen: Address = "127.0.0.1:18003"


class PumpConfig(Section):
    """``max_blocked`` sends may hang at once before frames wait for them; Triton has 32 threads."""

    workers: int = Field(4, ge=2, le=32)
    max_blocked: int = Field(16, ge=1, le=30)
    slow_send_s: Positive = 0.1
    cancel_poll_s: Positive = 1.0
