"""The driver's part in coming back: what it opens, refuses, keeps, wakes up for and tells."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from sluiceway.core.events import FinishReason
from sluiceway.core.record import Record
from sluiceway.core.spool import SpoolPosition
from sluiceway.core.states import State
from sluiceway.engine.protocol import EngineLoad, SamplingParams, TokenEvent
from sluiceway.runtime.codec import GenerateRequest
from sluiceway.runtime.config import Config
from sluiceway.runtime.driver import Driver
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.messages import Admit, Drain, Records, Snapshot, SpoolFound, Tokens


class Fake:
    """Writes down what it is told."""

    def __init__(self):
        self.calls, self.errors = [], 0

    def __getattr__(self, name):
        return lambda *arguments, **_: self.calls.append((name, *arguments))

    def post(self, command):
        command(self)

    def named(self, name):
        return [call for call in self.calls if call[0] == name]


class World:
    def __init__(self, reader=None, **settings):
        self.engine, self.outbox, self.log = Fake(), Fake(), []
        self.driver = Driver(
            Config.model_validate(settings),
            engine=self.engine,
            outbox=self.outbox,
            overhead_bytes=lambda message: 110,
            log=self.log.append,
            spool_reader=reader,
        )

    def at(self, now, *messages):
        self.driver.turn(messages, now)

    def admit(self, now, stream_id, rpc_id="rpc", resume_frame=None):
        request = GenerateRequest(
            prompt="Q",
            client_id="",
            rpc_id=rpc_id,
            stream=True,
            echo=False,
            sampling=SamplingParams(max_tokens=100),
            stream_id=stream_id,
            resume_frame=resume_frame,
        )
        self.at(now, Admit(request, (1, 2), path=None))

    def tokens(self, now, request_id, text, reason=None):
        self.at(now, Tokens([TokenEvent(request_id, (7,), text, reason)], now))

    def gone(self, now, rpc_id="rpc"):
        self.at(now, Records([Record(rpc_id, 0, 0, 0, ended=True, detail="reset")]))

    def frames(self, request_id):
        return [frame for _, stream, frame in self.outbox.named("send") if stream.request_id == request_id]

    @property
    def refused(self):
        return [(text, code) for _, _, _, text, code in self.outbox.named("refuse")]

    def spool(self, now):
        answer = Future()
        self.at(now, Snapshot(answer))
        return answer.result(0).spool


def test_a_stream_whose_client_left_goes_on_and_its_client_gets_the_rest():
    world = World()
    world.admit(1.0, "s")
    world.tokens(1.1, "r1", b"one ")
    world.gone(1.2)
    assert world.engine.named("abort") == []
    world.tokens(1.3, "r1", b"two ")
    world.admit(2.0, "s", rpc_id="new", resume_frame=1)
    assert [frame.text for frame in world.frames("r2")] == ["two "]
    world.tokens(2.1, "r1", b"three", FinishReason.STOP)
    assert [frame.sequence for frame in world.frames("r2")] == [1, 2, 3]
    assert world.frames("r2")[-1].finish_reason is FinishReason.STOP
    assert len(world.engine.named("submit")) == 1
    assert world.spool(2.2)["resumed"] == 1


def test_without_asking_for_it_nothing_is_kept():
    world = World()
    world.admit(1.0, "")
    world.tokens(1.1, "r1", b"one ")
    assert world.spool(1.2)["streams"] == 0
    world.gone(1.3)
    assert world.engine.named("abort") == [("abort", "r1")]


def test_the_driver_wakes_up_to_expire_and_ends_the_generation():
    world = World(spool={"ttl_s": 5.0}, pump={"cancel_poll_s": 1000.0})
    world.admit(1.0, "s")
    world.tokens(1.1, "r1", b"one ")
    world.gone(2.0)
    assert world.driver.next_deadline() == pytest.approx(7.0)
    world.at(7.0)
    assert world.engine.named("abort") == [("abort", "r1")]
    world.tokens(7.1, "r1", b"", FinishReason.CANCELLED)
    assert world.driver.finished.since(0)["finished"][0]["finish_reason"] == "detached"


def test_no_room_in_the_spool_refuses_a_resumable_stream_and_no_other():
    world = World(spool={"max_bytes": 100_000, "max_stream_bytes": 100_000, "retained_bytes": 0})
    world.admit(1.0, "s")
    world.admit(1.1, "t")
    ((text, code),) = world.refused
    assert text.startswith("spool.max_tenant_bytes: ")
    assert text.endswith("try again later")
    assert code is ErrorCode.UNAVAILABLE
    world.admit(1.2, "")
    assert [call[1].request_id for call in world.engine.named("submit")] == ["r1", "r2"]


def test_who_comes_back_while_the_server_drains_is_sent_elsewhere():
    world = World()
    world.admit(1.0, "s")
    world.at(1.1, Drain(Future()))
    world.admit(1.2, "s", resume_frame=0)
    assert world.refused == [("the server is shutting down; try again elsewhere", ErrorCode.UNAVAILABLE)]


def test_a_client_that_left_while_redis_was_asked_holds_nothing():
    reader = Fake()
    world = World(reader=reader)
    world.admit(1.0, "s", rpc_id="new", resume_frame=3)
    assert reader.named("look_up") == [("look_up", "resume-1", "s", "", 3)]
    world.gone(1.1, rpc_id="new")
    world.at(1.2, SpoolFound("resume-1", SpoolPosition(sequence=3, first_token_index=3)))
    assert [call[0] for call in world.outbox.calls] == ["close"]
    assert reader.named("leave") == [("leave", "resume-1")]
    assert world.spool(1.3)["returned_open"] == 0


def test_records_of_the_new_connection_move_what_is_kept():
    world = World(spool={"retained_bytes": 0})
    world.admit(1.0, "s")
    for _ in range(5):
        world.tokens(1.1, "r1", b"one ")
    frames = world.frames("r1")
    body = sum(frame.wire_bytes for frame in frames)
    world.at(1.2, Records([Record("rpc", len(frames), body, body)]))
    assert world.driver._resumes.spool.first_sequence("s") == len(frames)


def test_pauses_of_a_returned_client_are_not_decisions_but_its_silence_is():
    world = World()
    world.admit(1.0, "s")
    world.gone(1.1)
    for n in range(300):
        world.tokens(1.2, "r1", b"%04d " % n * 40, FinishReason.LENGTH if n == 299 else None)
    world.admit(2.0, "s", rpc_id="new", resume_frame=0)
    world.at(2.0, Records([Record("new", 0, 0, 0)]))
    crowded = EngineLoad(
        kv_blocks_total=100,
        kv_blocks_free=0,
        host_blocks_free=0,
        batch_streams=4,
        batch_free=0,
        waiting=1,
        oldest_waiting=None,
        step_s=0.02,
        prefill_tokens_per_s=1000.0,
        swap_blocks_per_s=1000.0,
    )
    for n in range(20, 60):
        world.at(n / 10, Tokens([], n / 10, crowded))
    answer = Future()
    world.at(6.0, Snapshot(answer))
    snapshot = answer.result(0)
    assert (snapshot.behind, snapshot.decisions, world.log) == (1, {}, [])
    assert snapshot.streams[0].sender.state is State.PAUSED
    world.at(53.0, Tokens([], 53.0, crowded))
    assert world.frames("r2")[-1].finish_reason is FinishReason.DETACHED
    assert [line.split()[0] for line in world.log] == ["decision"]
