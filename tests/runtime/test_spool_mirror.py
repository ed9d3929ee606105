"""What Redis is told of the ledger, and when."""

from __future__ import annotations

import pytest

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.core.spool_errors import SpoolFull, StreamComplete
from sluiceway.core.spool_limits import SpoolLimits
from sluiceway.core.spool_record import pack
from sluiceway.runtime.spool_mirror import MirroredSpool


class Writer:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))

    def refresh(self, streams):
        self.calls.append(("refresh", sorted(streams)))

    def named(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


def frame(sequence, reason=None):
    return Frame(sequence, sequence, (7,), "x", 0, reason)


@pytest.fixture
def writer():
    return Writer()


@pytest.fixture
def kept(writer):
    limits = SpoolLimits(max_stream_bytes=20_000, max_bytes=20_000, retained_bytes=0, ttl_s=300.0)
    made = MirroredSpool(limits, writer)
    made.open("s", "tenant", 1000)
    return made


def test_what_the_ledger_refuses_is_not_copied(kept, writer):
    with pytest.raises(SpoolFull):
        kept.open("t", "tenant", 20_001)
    kept.append("s", frame(0, FinishReason.STOP))
    with pytest.raises(StreamComplete):
        kept.append("s", frame(1))
    assert writer.calls == [("begin", "s", "tenant"), ("keep", "s", 0, pack(frame(0, FinishReason.STOP)))]


def test_a_stream_that_was_cut_is_cut_there_too(kept, writer):
    kept.append("s", frame(0))
    kept.cut("s", FinishReason.QUOTA)
    assert [sequence for _, sequence, _ in writer.named("keep")] == [0, 1]
    assert writer.calls[-1][3] == pack(Frame(1, 1, (), "", 0, FinishReason.QUOTA))


def test_redis_forgets_in_steps(kept, writer):
    for sequence in range(200):
        kept.append("s", frame(sequence))
    for sequence in range(201):
        kept.confirm("s", sequence)
    assert writer.named("trim") == [("s", 64), ("s", 128), ("s", 192)]


def test_what_is_forgotten_here_is_forgotten_there(kept, writer):
    kept.remove("s")
    assert writer.named("forget") == [("s",)]
    kept.open("t", "tenant", 1000)
    kept.spool.leave("t", 0.0, is_read=False)
    assert kept.expire(300.0) == ["t"]
    assert writer.named("forget") == [("s",), ("t",)]


def test_redis_hears_three_times_in_a_ttl_what_is_still_kept(kept, writer):
    for now in range(0, 300, 10):
        kept.expire(float(now))
    assert writer.named("refresh") == [(["s"],)] * 3


def test_without_redis_there_is_the_ledger_alone():
    alone = MirroredSpool(SpoolLimits(), None)
    alone.open("s", "", 1000)
    alone.append("s", frame(0))
    alone.confirm("s", 1)
    alone.cut("s", FinishReason.ERROR)
    alone.remove("s")
    assert alone.expire(0.0) == []
    assert alone.statistics()["redis"] is None
