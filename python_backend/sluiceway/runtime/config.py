"""The settings of one model instance, as ``sluiceway.yaml`` gives them. Sizes in bytes, times in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from sluiceway.core.limits import Limits
from sluiceway.core.policy import Mode
from sluiceway.core.spool_record import END_BYTES
from sluiceway.runtime.config_sections import (
    Address,
    AdminConfig,
    AdmissionConfig,
    DegradedConfig,
    DeliveryConfig,
    EngineConfig,
    FlowControlConfig,
    PolicyConfig,
    PumpConfig,
    Section,
)
from sluiceway.runtime.config_spool import SpoolConfig


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
