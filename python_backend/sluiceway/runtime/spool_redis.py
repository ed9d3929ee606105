"""The spool's place in Redis: its keys, and one connection. Never logs the url, which may hold a password.

For each stream: ``PREFIX:{ID}:frames``, a Redis stream whose entry N+1 holds frame N (entry 0-1 only says that
the stream began), and ``PREFIX:{ID}:about``, its tenant and owner, which lives longer: what it tells of and is
not there has expired. For each replica: a key that says that it lives, and a stream of notices to it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import redis
from pydantic import SecretStr, ValidationError

from sluiceway.runtime.config import Config
from sluiceway.runtime.config_spool import RedisConfig
from sluiceway.runtime.errors import ConfigError

OWNER_TTL_S = 10  # a replica that said nothing for so long is gone
FRAME, BEGAN = b"f", b"b"
Failure = (redis.RedisError, OSError)
Client = Any  # redis.Redis, whose annotations are those of its asynchronous twin


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisPlace:
    """ttl_s: of frames nobody refreshed. owner: this process, as other replicas know it."""

    config: RedisConfig
    owner: str
    ttl_s: float

    def connect(self) -> Client:
        """A client that raises redis.RedisError at the first use if nobody is there.

        Raises ConfigError, without a word of the url, for one that cannot be read.
        """
        timeout_s = self.config.timeout_s
        try:
            return redis.Redis.from_url(
                self.config.url.get_secret_value(),
                protocol=2,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=None,
            )
        except ValueError:
            raise ConfigError("spool.redis.url (or SLUICEWAY_REDIS_URL): cannot be read as a url") from None

    def frames(self, stream_id: str) -> str:
        return f"{self.config.prefix}:{{{stream_id}}}:frames"

    def about(self, stream_id: str) -> str:
        return f"{self.config.prefix}:{{{stream_id}}}:about"

    def alive(self, owner: str) -> str:
        return f"{self.config.prefix}:owner:{owner}"

    def notices(self, owner: str) -> str:
        return f"{self.config.prefix}:owner:{owner}:notices"

    @property
    def ttl_ms(self) -> int:
        return max(1000, int(self.ttl_s * 1000))

    def where(self, client: Client) -> str:
        """Host and port or socket, without user and password."""
        options = client.connection_pool.connection_kwargs
        return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")


def redis_place(config: Config, override: str | None) -> RedisPlace | None:
    """Where this process shares its spool; override: a url that replaces the configuration's, or stands alone."""
    settings = config.spool.redis
    if override:
        given = {} if settings is None else settings.model_dump()
        try:
            settings = RedisConfig.model_validate(given | {"url": SecretStr(override)})
        except ValidationError:
            raise ConfigError("SLUICEWAY_REDIS_URL: must begin with redis://, rediss:// or unix://") from None
    if settings is None:
        return None
    return RedisPlace(config=settings, owner=secrets.token_hex(8), ttl_s=config.spool.ttl_s)


def entry_id(sequence: int) -> str:
    """Of the entry that holds a frame: so Redis itself refuses a frame that comes twice or late."""
    return f"{sequence + 1}-0"


def sequence_of(entry: bytes) -> int:
    """-1 for the entry that only says that the stream began."""
    return int(entry.partition(b"-")[0]) - 1
