"""Control requests through the driver."""

from __future__ import annotations

import json

import pytest

from runtime.test_driver import World, fill, record
from sluiceway.core.events import FinishReason
from sluiceway.core.record import Record
from sluiceway.runtime.control import Ack, AskLevels, Cancel, ControlRequest
from sluiceway.runtime.messages import Control, Records


def http_record(body, wire, header=100):
    return Records([Record("rpc", 0, body, wire, header, counts_messages=False)])


class AckWorld(World):
    def say(self, now, control, client_id="client", rpc_id="rpc"):
        """The answer: a text, None for nothing said, an error's text in a tuple."""
        refused, answers = len(self.outbox.refused), len(self.outbox.answers)
        self.at(now, Control(ControlRequest(client_id, rpc_id, control), path=None))
        assert len(self.outbox.refused) + len(self.outbox.answers) == refused + answers + 1
        return self.outbox.refused[-1][:1] if len(self.outbox.refused) > refused else self.outbox.answers[-1]


@pytest.fixture
def world():
    return AckWorld()


def test_an_answer_over_http_goes_on_as_its_bytes_are_let_out(world):
    world.admit(1.0, acks=True)
    world.at(1.1, http_record(0, 0))
    fill(world, "r1", 1.2)
    assert world.engine.calls[1:] == [("pause", "r1")]
    stuck_at = len(world.outbox.frames)
    assert world.say(1.3, Ack(stuck_at - 1, body_bytes=5000)) is None
    world.at(1.4, http_record(5000, 100 + 4000))
    assert len(world.outbox.frames) == stuck_at
    world.at(1.5, http_record(5000, 100 + 5000 + 60))
    assert len(world.outbox.frames) > stuck_at
    for second in range(2, 40):
        last = len(world.outbox.frames) - 1
        world.say(float(second), Ack(last, body_bytes=5000 + second))
        world.at(second + 0.5, http_record(5000 + second, 100 + 5000 + second + 100))
    assert world.engine.calls[-1] == ("resume", "r1")
    assert "".join(world.outbox.texts("r1")) == "river " * 30 * 200


def test_levels_say_what_the_client_may_know(world):
    world.admit(1.0, acks=True)
    world.at(1.1, record())
    world.tokens(1.2, "r1", b"hello")
    world.say(1.3, Ack(0))
    levels = json.loads(world.say(1.4, AskLevels()))
    assert (levels["state"], levels["consumed"]["frames"], levels["backlog"]["frames"]) == ("streaming", 1, 0)
    assert levels["is_paused"] is False
    assert levels["age_s"] == pytest.approx(0.4)


def test_cancel_ends_with_a_reason(world):
    world.admit(1.0, acks=True)
    world.at(1.1, record())
    assert world.say(1.2, Cancel()) is None
    world.tokens(1.3, "r1", b"", FinishReason.CANCELLED, ids=())
    assert world.outbox.frames[-1][1].finish_reason is FinishReason.CANCELLED


@pytest.mark.parametrize(
    ("control", "client_id", "rpc_id", "complaint"),
    [
        (Ack(1), "client", "rpc", "ack_frame: frame 1 was never sent; 0 to 0 were"),
        (Ack(0), "plain", "rpc", "ack_frame: the stream was not opened with acks true"),
        (AskLevels(), "twice", "rpc", "id: 2 open streams of this RPC have it; give each its own"),
        (Cancel(), "client", None, "x-request-id: missing; without it no stream can be found"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(world, control, client_id, rpc_id, complaint):
    world.admit(1.0, acks=True)
    world.admit(1.0, client_id="plain")
    world.admit(1.0, client_id="twice")
    world.admit(1.0, client_id="twice")
    world.at(1.1, record())
    world.tokens(1.2, "r1", b"hello")
    before = world.snapshot(1.3)
    assert world.say(1.3, control, client_id, rpc_id) == (complaint,)
    assert world.snapshot(1.3).streams == before.streams


@pytest.mark.parametrize("control", [Ack(0), Cancel(), AskLevels()])
@pytest.mark.parametrize(("client_id", "rpc_id"), [("other", "rpc"), ("client", "other")])
def test_of_a_stream_that_is_not_open_there_nothing_is_said(world, control, client_id, rpc_id):
    world.admit(1.0, acks=True)
    world.tokens(1.2, "r1", b"hello")
    assert world.say(1.3, control, client_id, rpc_id) is None
    assert world.stream(1.4, "r1").sender.consumed.frames == 0


def test_acks_tell_the_spool_what_the_client_has(world):
    told = []
    world.driver._resumes.delivered = lambda *args: told.append(args)
    world.driver._clients._delivered = world.driver._resumes.delivered
    world.admit(1.0, acks=True, stream_id="s" * 32)
    world.tokens(1.1, "r1", b"hello")
    world.at(1.2, record(1, 500))
    assert told[-1] == ("s" * 32, "r1", 0)
    world.say(1.3, Ack(0))
    assert told[-1] == ("s" * 32, "r1", 1)
