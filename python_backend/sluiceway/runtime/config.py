"""The settings of one model instance, as ``sluiceway.yaml`` gives them. Sizes in bytes, times in seconds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from sluiceway.core.limits import Limits, Size
from sluiceway.core.spool import SpoolLimits
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
    step_s: float = Field(0.02, ge=0, le=10)
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
    """core.limits.Limits and a mode; ``run_to_completion`` never pauses (the arm to compare with)."""

    mode: Literal["bounded", "run_to_completion"] = "bounded"
    window: SizeConfig = _size(_DEFAULT.window)
    high: SizeConfig = _size(_DEFAULT.high)
    low: SizeConfig = _size(_DEFAULT.low)
    max_frame_bytes: int = Field(_DEFAULT.max_frame_bytes, ge=64, le=MAX_WINDOW_BYTES)
    merge_frames: int = Field(_DEFAULT.merge_frames, ge=1, le=2**20)
    release_kv_after_s: Positive | None = _DEFAULT.release_kv_after_s
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

    def limits(self, frame_overhead_bytes: int) -> Limits:
        """Limits of a request whose frames cost ``frame_overhead_bytes`` beside their text."""
        return Limits(
            window=self.window.size(),
            high=self.high.size(),
            low=self.low.size(),
            max_frame_bytes=self.max_frame_bytes,
            merge_frames=self.merge_frames,
            frame_overhead_bytes=frame_overhead_bytes,
            release_kv_after_s=self.release_kv_after_s,
            max_silence_s=self.max_silence_s,
            signal_timeout_s=self.signal_timeout_s,
            drain_timeout_s=self.drain_timeout_s,
            pausing=self.mode == "bounded",
        )


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
    """What is kept of streams whose clients may come back; see core.spool.SpoolLimits."""

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
