"""The section ``spool`` of ``sluiceway.yaml``: what is kept for clients that may come back, and where."""

from __future__ import annotations

import itertools
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from sluiceway.core.spool_limits import SpoolLimits
from sluiceway.runtime.config_sections import Positive, Section


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
