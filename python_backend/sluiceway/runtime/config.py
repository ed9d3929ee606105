"""The settings of one model instance, as ``sluiceway.yaml`` gives them. Sizes in bytes, times in seconds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from sluiceway.core.limits import Limits, Size
from sluiceway.core.policy import Mode
from sluiceway.core.policy_settings import PolicySettings
from sluiceway.core.spool_limits import SpoolLimits
from sluiceway.core.spool_record import END_BYTES

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


class FlowControlConfig(Section):
    """core.limits.Limits and a mode. ``run_to_completion`` (the arm to compare with) pauses at nothing but
    spool.max_stream_bytes, which bounds what a reader that is stuck may pile up.
    """

    mode: Literal["bounded", "run_to_completion"] = "bounded"
    window: SizeConfig = _size(_DEFAULT.window)
    high: SizeConfig = _size(_DEFAULT.high)
    low: SizeConfig = _size(_DEFAULT.low)
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


class RedisConfig(Section):
    """A spool that other replicas can read. url: redis://, rediss:// or unix://, which may hold a password.

    Never in the driver's way: what does not fit ``max_queue_bytes`` is not written, and counted.
    """

    url: SecretStr
    prefix: str = Field("sluiceway", pattern=r"^[A-Za-z0-9_.\-:]{1,64}$")
    timeout_s: Positive = 1.0
    max_queue_bytes: int = Field(8 * 2**20, ge=2**16, le=2**34)
    max_stream_frames: int = Field(65_536, ge=16, le=10_000_000)

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: SecretStr) -> SecretStr:
        if not url.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        return url


class SpoolConfig(Section):
    """What is kept of streams whose clients may come back; see core.spool_limits.SpoolLimits."""

    max_stream_bytes: int = Field(2**20, ge=1, le=2**34)
    max_tenant_bytes: int | None = Field(None, ge=1, le=2**40)  # None: all of max_bytes
    max_bytes: int = Field(64 * 2**20, ge=1, le=2**40)
    retained_bytes: int = Field(256 * 2**10, ge=0, le=2**34)
    ttl_s: Positive = 300.0
    redis: RedisConfig | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        sizes = {
            "retained_bytes": self.retained_bytes,
            "max_stream_bytes": self.max_stream_bytes,
            "max_tenant_bytes": self.max_bytes if self.max_tenant_bytes is None else self.max_tenant_bytes,
            "max_bytes": self.max_bytes,
        }
        for (small, low), (large, high) in itertools.pairwise(sizes.items()):
            if low > high:
                raise ValueError(f"{small} ({low}) must not be above {large} ({high})")
        return self

    def limits(self) -> SpoolLimits:
        return SpoolLimits(
            max_stream_bytes=self.max_stream_bytes,
            max_tenant_bytes=self.max_bytes if self.max_tenant_bytes is None else self.max_tenant_bytes,
            max_bytes=self.max_bytes,
            retained_bytes=self.retained_bytes,
            ttl_s=self.ttl_s,
        )


class Config(Section):
    """One instance. ``drain_watch``: the tritonserver whose shutdown ends our streams ("host:port" of
    its gRPC endpoint, "auto": read the parent's --grpc-port, None: nobody watches).
    """

    engine: EngineConfig = EngineConfig()
    flow_control: FlowControlConfig = FlowControlConfig()
    policy: PolicyConfig = PolicyConfig()
    degraded: DegradedConfig = DegradedConfig()
    admission: AdmissionConfig = AdmissionConfig()
    delivery: DeliveryConfig = DeliveryConfig()
    admin: AdminConfig = AdminConfig()
    pump: PumpConfig = PumpConfig()
    spool: SpoolConfig = SpoolConfig()
    drain_watch: Literal["auto"] | Address | None = "auto"

    @model_validator(mode="after")
    def _spool_holds_a_stream(self) -> Self:
        wanted, has = self.spool_floor_bytes, self.spool.max_stream_bytes
        if has < self.flow_control.max_frame_bytes + END_BYTES:
            raise ValueError(f"spool.max_stream_bytes ({has}) does not hold one frame of flow_control.max_frame_bytes")
        if has < wanted:
            raise ValueError(
                f"spool.max_stream_bytes ({has}) must be at least {wanted}: what flow_control lets a stream"
                " have made and not delivered when its client leaves"
            )
        return self

    @model_validator(mode="after")
    def _degrades_before_it_ends(self) -> Self:
        after_s, silence_s = self.degraded.after_s, self.flow_control.max_silence_s
        if self.degraded.enabled and after_s >= silence_s:
            raise ValueError(f"degraded.after_s ({after_s}) must be below flow_control.max_silence_s ({silence_s})")
        return self

    def limits(self, frame_overhead_bytes: int) -> Limits:
        """Limits of a request whose frames cost ``frame_overhead_bytes`` beside their text."""
        return self.flow_control.limits(
            frame_overhead_bytes,
            max_backlog_bytes=self.spool.max_stream_bytes,
            degrade_after_s=self.degraded.after_s if self.degraded.enabled else None,
        )

    @property
    def policy_mode(self) -> Mode:
        """Run to completion holds what it has: it is the arm without a policy."""
        return self.policy.mode if self.flow_control.mode == "bounded" else "hold"

    def engine_settings(self) -> EngineConfig:
        """With what the arm leaves open: only ours orders by what is unread, and mode "hold" gives nothing back."""
        engine, is_bounded = self.engine, self.flow_control.mode == "bounded"
        is_ours = is_bounded and self.policy.mode == "cost"
        held = "none" if is_bounded and self.policy.mode == "hold" else "any"
        return engine.model_copy(
            update={
                "buffer_aware": is_ours if engine.buffer_aware is None else engine.buffer_aware,
                "reclaim": engine.reclaim or held,
            }
        )

    @property
    def spool_floor_bytes(self) -> int:
        """What one stream may have made and not delivered, as the spool counts it: window, high, two frames."""
        flow = self.flow_control
        parts = (flow.window, flow.high)
        content = sum(part.bytes + 4 * part.tokens + part.frames * END_BYTES for part in parts)
        return content + 2 * (flow.max_frame_bytes + END_BYTES)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, data: Any) -> Any:
        return {} if data is None else data


def model_dir(config: Config, config_path: Path, override: str | None) -> Path | None:
    """Where the weights are: the override, else the setting, seen from the configuration file."""
    if override:
        return Path(override)
    if config.engine.model_dir is None:
        return None
    return (config_path.parent / config.engine.model_dir).resolve()
