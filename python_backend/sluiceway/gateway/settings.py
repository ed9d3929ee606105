"""The settings of one gateway. Sizes in bytes, times in seconds; every one has a default (examples/gateway.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from sluiceway.runtime.config_file import load_settings
from sluiceway.runtime.config_sections import Address, Section


class ServerSettings(Section):
    """Towards whoever is in front. The buffers are what a client that does not read can hide there (ADR 10).

    keep_alive_s: above the idle timeout of the proxy's connections to us, which must be the one that closes.
    drain_s: on SIGTERM, how long streams may still end by themselves; then they end with an error that says so.
    """

    write_buffer_bytes: int = Field(4096, ge=1, le=2**20)
    send_buffer_bytes: int = Field(4608, ge=2048, le=2**20)  # SO_SNDBUF; the kernel doubles it
    backlog: int = Field(2048, ge=1, le=65_535)
    max_header_bytes: int = Field(32 * 1024, ge=1024, le=2**20)
    keep_alive_s: int = Field(5, ge=1, le=3600)
    drain_s: float = Field(1.5, ge=0, le=3600)


class WebSocketSettings(Section):
    """allowed_origins: pages that may open a stream besides those that the gateway's own host serves."""

    max_message_bytes: int = Field(256 * 1024, ge=1024, le=2**24)
    allowed_origins: tuple[str, ...] = Field((), strict=False)


class GatewaySettings(Section):
    """One gateway process; Envoy's cluster ``gateway`` has one endpoint for each.

    delivery: "envoy": the backend counts a frame as taken once Envoy's record lets its bytes out; "transport":
    once the gateway's own socket took them (no Envoy of ours in front). smallest_idle_limit_s: of everything
    between us and the client. max_streams: of one process. request_timeout_s: for the whole of a request's body.
    timeout_s: the longest answer; Envoy's limit is the same.
    """

    listen: Address = "127.0.0.1:8090"
    triton: Address = "127.0.0.1:8001"
    triton_channels: int = Field(4, ge=1, le=64)
    triton_model: str = Field("llm", min_length=1, max_length=256)
    model_dir: str | None = None  # tokenizer and chat template; relative paths start at the settings file's folder
    served_model_name: str = Field("llm", min_length=1, max_length=256)
    delivery: Literal["envoy", "transport"] = "envoy"
    heartbeat_s: float = Field(10, gt=0, le=3600)
    smallest_idle_limit_s: float = Field(60, gt=0, le=86_400)
    max_body_bytes: int = Field(2**20, ge=1024, le=2**28)
    request_timeout_s: float = Field(10, gt=0, le=3600)
    timeout_s: float = Field(1800, gt=0, le=86_400)
    max_tokens_default: int = Field(256, ge=1, le=10_000_000)
    max_streams: int = Field(1024, ge=1, le=100_000)
    max_whole_answer_bytes: int = Field(2**20, ge=1024, le=2**28)
    server: ServerSettings = ServerSettings()
    websocket: WebSocketSettings = WebSocketSettings()

    @model_validator(mode="after")
    def _heartbeats_are_in_time(self) -> Self:
        if self.heartbeat_s > self.smallest_idle_limit_s / 3:
            raise ValueError(
                f"heartbeat_s ({self.heartbeat_s:g}) must be at most a third of smallest_idle_limit_s"
                f" ({self.smallest_idle_limit_s:g}): two may be late or lost before anybody gives up"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, data: Any) -> Any:
        return {} if data is None else data


def load_gateway_settings(path: Path) -> GatewaySettings:
    """Raise ConfigError, naming file, line and field, if the file cannot be used."""
    settings = load_settings(path, GatewaySettings)
    if settings.model_dir is None:
        return settings
    return settings.model_copy(update={"model_dir": str((path.parent / settings.model_dir).resolve())})
