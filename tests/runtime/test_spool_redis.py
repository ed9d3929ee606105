"""The spool in a real Redis: what one replica writes, another reads."""

from __future__ import annotations

import queue
import time

import pytest
from pydantic import SecretStr

from sluiceway.cli.redis import RedisServer
from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.core.spool import SpoolPosition
from sluiceway.core.spool_errors import (
    FrameExpired,
    FrameUnknown,
    StreamComplete,
    StreamExpired,
    StreamForeign,
    StreamUnknown,
)
from sluiceway.core.spool_record import pack
from sluiceway.runtime.config import Config
from sluiceway.runtime.config_spool import RedisConfig
from sluiceway.runtime.errors import ConfigError
from sluiceway.runtime.messages import ClientElsewhere, SpoolFound, SpoolLost, SpoolRead
from sluiceway.runtime.spool_reader import SpoolReader, SpoolUnreachable
from sluiceway.runtime.spool_redis import RedisPlace, redis_place
from sluiceway.runtime.spool_writer import SpoolWriter


def frame(sequence, reason=None):
    return Frame(sequence, 10 * sequence, (7, 8), f"é{sequence} ", 0, reason)


class Replica:
    """A writer and a reader, as one process has them."""

    def __init__(self, server, owner, **settings):
        self.log, self.posted = [], queue.Queue()
        self.place = RedisPlace(config=RedisConfig(url=server.url, **settings), owner=owner, ttl_s=300.0)
        self.writer = SpoolWriter(self.place, clock=time.monotonic, log=self.log.append)
        self.reader = SpoolReader(self.place, self.posted.put, clock=time.monotonic, log=self.log.append)

    def start(self):
        self.writer.start()
        self.reader.start()
        return self

    def stop(self):
        assert self.writer.stop(5.0)
        assert self.reader.stop(5.0)

    def write(self, stream_id, *frames, tenant=""):
        self.writer.begin(stream_id, tenant)
        self.keep(stream_id, *frames)

    def keep(self, stream_id, *frames):
        for each in frames:
            self.writer.keep(stream_id, each.sequence, pack(each))

    def look_up(self, stream_id, sequence, tenant="", key="k"):
        self.reader.look_up(key, stream_id, tenant, sequence)
        return self.answer(SpoolFound).answer

    def answer(self, kind):
        while not isinstance(message := self.posted.get(timeout=10), kind):
            pass
        return message

    def settle(self):
        wait_for(lambda: self.writer.statistics().connected and not self.writer.statistics().queued_bytes)


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as running:
        yield running


@pytest.fixture
def replicas(server):
    one, other = Replica(server, "one").start(), Replica(server, "other").start()
    yield one, other
    one.stop()
    other.stop()


def test_another_replica_reads_on_where_the_client_stopped_and_follows_to_the_end(replicas):
    one, other = replicas
    one.write("s", frame(0), frame(1), frame(2))
    one.settle()
    assert other.look_up("s", 1) == SpoolPosition(sequence=1, first_token_index=10)
    assert other.answer(SpoolRead).frames == (frame(1), frame(2))
    assert one.answer(ClientElsewhere) == ClientElsewhere("s", 1, is_new=True)
    other.reader.more("k", 3)
    one.keep("s", frame(3, FinishReason.STOP))
    assert other.answer(SpoolRead).frames == (frame(3, FinishReason.STOP),)


def test_a_client_that_is_quicker_than_its_old_replica_writes_is_waited_for(replicas):
    one, other = replicas
    other.reader.look_up("k", "s", "", 2)
    time.sleep(0.1)  # it has looked, and found nothing
    one.write("s", frame(0))
    time.sleep(0.1)
    one.keep("s", frame(1))
    assert other.answer(SpoolFound).answer == SpoolPosition(sequence=2, first_token_index=12)


def test_who_waits_for_the_next_frame_is_at_the_right_token(replicas):
    one, other = replicas
    one.write("s", frame(0))
    one.write("empty")
    one.settle()
    assert other.look_up("s", 1) == SpoolPosition(sequence=1, first_token_index=2)
    assert other.look_up("empty", 0, key="e") == SpoolPosition(sequence=0, first_token_index=0)


def test_each_refusal_is_its_own(replicas, server):
    one, other = replicas
    one.write("open", frame(0), frame(1), frame(2), tenant="mine")
    one.writer.trim("open", 2)
    one.write("done", frame(0, FinishReason.STOP), tenant="mine")
    one.write("old", frame(0), tenant="mine")
    one.writer.forget("old")
    one.settle()
    with server.client() as client:
        client.hset("sluiceway:{other}:about", mapping={"tenant": "mine", "owner": "x"})
        client.xadd("sluiceway:{other}:frames", {"f": b"nonsense"}, id="1-0")
    for stream_id, tenant, sequence, error in [
        ("never", "mine", 0, StreamUnknown),
        ("open", "theirs", 2, StreamForeign),
        ("old", "mine", 0, StreamExpired),
        ("open", "mine", 1, FrameExpired),
        ("open", "mine", 4, FrameUnknown),
        ("done", "mine", 1, StreamComplete),
        ("other", "mine", 0, StreamUnknown),
    ]:
        assert type(other.look_up(stream_id, sequence, tenant)) is error
    assert other.look_up("open", 2, "mine") == SpoolPosition(sequence=2, first_token_index=20)


def test_a_gap_ends_the_reading_instead_of_leaving_text_out(replicas):
    one, other = replicas
    one.write("s", frame(0), frame(2))
    one.settle()
    other.look_up("s", 0)
    assert other.answer(SpoolLost).why == "frames are missing in Redis"


def test_a_replica_that_is_gone_is_noticed(replicas, server):
    one, other = replicas
    one.write("s", frame(0))
    one.settle()
    one.writer.stop(5.0)  # as it says when it leaves; a killed one says nothing for OWNER_TTL_S
    other.look_up("s", 0)
    assert other.answer(SpoolRead).frames == (frame(0),)
    other.reader.more("k", 1)
    assert other.answer(SpoolLost).why == "the replica that made the answer is gone"


def test_everything_in_redis_has_an_end(replicas, server):
    one, other = replicas
    one.write("s", frame(0))
    one.settle()
    other.settle()
    other.look_up("s", 0)
    one.answer(ClientElsewhere)
    with server.client() as client:
        ttls = {name: client.ttl(name) for name in client.keys("*")}
    assert len(ttls) == 5
    assert all(0 < ttl <= 600 for ttl in ttls.values())


def test_redis_away_at_the_start_is_said_loudly_without_the_password_and_tried_again(tmp_path):
    server = RedisServer(tmp_path, password="secret-word")
    one = Replica(server, "one").start()
    wait_for(lambda: one.writer.statistics().errors)
    one.write("s", frame(0))
    assert type(one.look_up("s", 0)) is SpoolUnreachable
    statistics = one.writer.statistics()
    assert not statistics.connected
    assert statistics.queued_bytes > 0
    assert any("WITHOUT REDIS" in line and f"127.0.0.1:{server.port}" in line for line in one.log)
    with server:
        one.settle()
        assert one.look_up("s", 0) == SpoolPosition(sequence=0, first_token_index=0)
        assert any("writing to Redis" in line for line in one.log)
        one.stop()
    assert "secret-word" not in "".join(one.log) + repr(one.place) + repr(one.writer.statistics())


def test_redis_that_dies_and_comes_back_without_its_data_has_no_half_streams(replicas, server):
    one, other = replicas
    one.write("before", frame(0), frame(1))
    one.settle()
    server.stop()
    one.keep("before", frame(2))
    wait_for(lambda: one.writer.statistics().errors)
    server.start()
    one.settle()
    assert type(other.look_up("before", 2)) is StreamUnknown
    one.write("after", frame(0))
    one.settle()
    assert other.look_up("after", 0) == SpoolPosition(sequence=0, first_token_index=0)


def test_a_queue_that_is_full_gives_a_stream_up_as_a_whole(server):
    one = Replica(server, "one", max_queue_bytes=2**16)
    one.write("big", *(frame(n) for n in range(400)))
    statistics = one.writer.statistics()
    assert statistics.queued_bytes <= 2**16 + 256
    assert statistics.dropped_frames > 0
    assert statistics.dropped_streams == 1
    one.start()
    one.settle()
    one.write("small", frame(0))
    one.settle()
    assert type(one.look_up("big", 0)) is StreamExpired
    assert one.look_up("small", 0) == SpoolPosition(sequence=0, first_token_index=0)
    one.stop()


def test_a_url_that_nobody_understands(server):
    place = RedisPlace(config=RedisConfig(url="redis://host:port/0"), owner="o", ttl_s=1.0)
    with pytest.raises(ConfigError, match="cannot be read as a url"):
        place.connect()


def test_the_environment_s_url_comes_first_and_stands_alone():
    config = Config.model_validate({"spool": {"redis": {"url": "redis://one", "prefix": "p"}}})
    assert redis_place(Config(), None) is None
    assert redis_place(config, None).config.url.get_secret_value() == "redis://one"
    assert redis_place(config, "redis://other").config.model_dump() == {
        **config.spool.redis.model_dump(),
        "url": SecretStr("redis://other"),
    }
    assert redis_place(Config(), "unix:///socket").config.prefix == "sluiceway"
    with pytest.raises(ConfigError, match=r"SLUICEWAY_REDIS_URL: must begin with"):
        redis_place(config, "http://:secret@host")
