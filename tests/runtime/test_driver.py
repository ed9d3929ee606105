from __future__ import annotations

from concurrent.futures import Future

import pytest

from sluiceway.core.events import FinishReason, FrameSent, SendFailed
from sluiceway.core.record import Record
from sluiceway.engine.protocol import SamplingParams, TokenEvent
from sluiceway.runtime.codec import GenerateRequest, Outputs
from sluiceway.runtime.config import Config
from sluiceway.runtime.driver import Driver
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.messages import (
    Admit,
    Drain,
    EngineDied,
    PollDone,
    Records,
    Refuse,
    SendDone,
    Snapshot,
    Tokens,
)

OVERHEAD = 110


class Engine:
    """Writes down what it is told."""

    def __init__(self):
        self.calls = []

    def submit(self, request):
        self.calls.append(("submit", request.request_id))

    def post(self, command):
        command(self)

    def __getattr__(self, name):
        return lambda request_id: self.calls.append((name, request_id))


class Outbox:
    """Takes what the pump would do; tests answer for it."""

    def __init__(self):
        self.frames, self.closed, self.refused, self.polls = [], [], [], []

    def send(self, stream, frame):
        self.frames.append((stream.request_id, frame))

    def close(self, stream):
        self.closed.append(stream.request_id)

    def refuse(self, rpc_id, path, message, code):
        self.refused.append((message, code))

    def poll(self, stream, *, records_expired):
        self.polls.append((stream.request_id, records_expired))

    def texts(self, request_id):
        return [frame.text for name, frame in self.frames if name == request_id]


class World:
    def __init__(self, **settings):
        self.engine, self.outbox = Engine(), Outbox()
        self.log = []
        self.driver = Driver(
            Config.model_validate(settings),
            engine=self.engine,
            outbox=self.outbox,
            overhead_bytes=lambda message: OVERHEAD,
            log=self.log.append,
        )

    def at(self, now, *messages):
        self.driver.turn(messages, now)

    def admit(self, now, rpc_id="rpc", *, stream=True, **outputs):
        request = GenerateRequest(
            prompt="Q",
            client_id="client",
            rpc_id=rpc_id,
            stream=stream,
            echo=False,
            outputs=Outputs(**outputs),
            sampling=SamplingParams(max_tokens=1000),
        )
        self.at(now, Admit(request, (1, 2), path=None))

    def tokens(self, now, request_id, text, reason=None, ids=(7,)):
        self.at(now, Tokens([TokenEvent(request_id, ids, text, reason)], now))

    def sent_all(self, now):
        """send() returned for every frame."""
        for request_id, frame in list(self.outbox.frames):
            self.at(now, SendDone(request_id, FrameSent(frame.sequence)))

    def snapshot(self, now):
        answer = Future()
        self.at(now, Snapshot(answer))
        return answer.result(0)

    def stream(self, now, request_id):
        return next(s for s in self.snapshot(now).streams if s.sender.request_id == request_id)

    @property
    def finished(self):
        return self.driver.finished.since(0)["finished"]


def record(messages=0, body=0, wire=None, rpc_id="rpc", **flags):
    """Everything that passed the filters was let out, unless ``wire`` says less."""
    return Records([Record(rpc_id, messages, body, body if wire is None else wire, **flags)])


@pytest.fixture
def world():
    return World()


def test_a_stream_from_start_to_end(world):
    world.admit(1.0)
    assert world.engine.calls == [("submit", "r1")]
    world.tokens(1.1, "r1", b"one ")
    world.tokens(1.2, "r1", b"two", FinishReason.STOP)
    world.sent_all(1.3)
    assert "".join(world.outbox.texts("r1")) == "one two"
    assert [frame.finish_reason for _, frame in world.outbox.frames][-1] is FinishReason.STOP
    (entry,) = world.finished
    assert (entry["client_id"], entry["finish_reason"], entry["produced_tokens"]) == ("client", "stop", 2)
    assert (entry["t_accepted"], entry["t_first_token"], entry["t_kv_free"], entry["t_closed"]) == (1.0, 1.1, 1.2, 1.3)
    assert entry["token_times"] == [1.1, 1.2]
    snapshot = world.snapshot(1.4)
    assert (snapshot.streams, snapshot.totals.open_streams, snapshot.finished) == ((), 0, {"stop": 1})
    assert snapshot.rpcs == 0


def test_a_whole_answer_is_one_frame(world):
    world.admit(1.0, stream=False, token_ids=True)
    world.tokens(1.1, "r1", b"one ", ids=(1,))
    world.tokens(1.2, "r1", b"two", FinishReason.LENGTH, ids=(2,))
    ((_, frame),) = world.outbox.frames
    assert (frame.text, frame.token_ids, frame.finish_reason) == ("one two", (1, 2), FinishReason.LENGTH)
    world.sent_all(1.3)
    assert world.finished[0]["finish_reason"] == "length"


def test_a_whole_answer_has_a_limit_and_stays_whole_characters():
    world = World(admission={"max_whole_answer_bytes": 64})
    world.admit(1.0, stream=False)
    for _ in range(40):
        world.tokens(1.1, "r1", "é".encode()[:1])
        world.tokens(1.1, "r1", "é".encode()[1:] + b"-")
    assert world.engine.calls[-1] == ("abort", "r1")
    world.tokens(1.2, "r1", b"", FinishReason.CANCELLED, ids=())
    ((_, frame),) = world.outbox.frames
    assert frame.text == "é-" * 21
    assert frame.finish_reason is FinishReason.LENGTH


def test_a_whole_answer_is_booked_with_all_its_bytes(world):
    world.admit(1.0, stream=False)
    world.tokens(1.1, "r1", b"x" * 1000, FinishReason.STOP)
    world.admit(1.2, stream=False)
    window = world.driver._streams["r2"].rpc.window
    assert window.in_flight.bytes == OVERHEAD + 1000
    world.tokens(1.3, "r2", b"x" * 16000, FinishReason.STOP)
    assert world.outbox.texts("r2") == []  # together they would exceed the window
    world.at(1.4, record(1, OVERHEAD + 1000))
    assert world.outbox.texts("r2") == ["x" * 16000]


def test_token_ids_count_as_wire_bytes(world):
    world.admit(1.0, token_ids=True)
    world.tokens(1.1, "r1", b"abc", ids=(1, 2, 3))
    assert world.driver._streams["r1"].rpc.window.in_flight.bytes == OVERHEAD + 3 + 8


def fill(world, request_id, now, tokens=200):
    """More than any reader gets who reads nothing: the window is full, and something is left."""
    for _ in range(tokens):
        world.tokens(now, request_id, b"river " * 30)


def test_a_reader_that_stops_is_paused_loses_its_kv_and_comes_back(world):
    world.admit(1.0)
    world.at(1.1, record())
    fill(world, "r1", 1.2)
    assert world.engine.calls[1:] == [("pause", "r1")]
    assert world.stream(1.3, "r1").sender.state == "paused"
    assert world.driver.next_deadline() < 10.0
    world.at(3.3)
    assert world.engine.calls[2:] == [("release_kv", "r1")]
    world.sent_all(4.0)
    stuck_at = len(world.outbox.frames)
    for second in range(5, 15):  # it reads all that is there, again and again
        frames = [frame for _, frame in world.outbox.frames]
        world.at(float(second), record(len(frames), sum(frame.wire_bytes for frame in frames)))
    assert len(world.outbox.frames) > stuck_at
    assert world.engine.calls[3:] == [("resume", "r1")]
    assert "".join(world.outbox.texts("r1")) == "river " * 30 * 200


def test_one_readers_stop_is_not_its_neighbours_business(world):
    world.admit(1.0, "stuck")
    world.admit(1.0, "fine")
    world.at(1.1, record(rpc_id="stuck"), record(rpc_id="fine"))
    fill(world, "r1", 1.2)
    world.tokens(1.3, "r2", b"hello")
    assert ("pause", "r2") not in world.engine.calls
    assert world.outbox.texts("r2") == ["hello"]


def test_requests_of_one_rpc_share_its_window_and_its_end(world):
    world.admit(1.0)
    world.admit(1.0)
    world.at(1.1, record())
    fill(world, "r1", 1.2)
    world.tokens(1.3, "r2", b"x" * 3980)
    assert world.outbox.texts("r2") == []
    world.at(1.4, record(ended=True, disconnected=True, detail="downstream_remote_disconnect"))
    assert world.outbox.closed == ["r1", "r2"]
    for request_id in ("r1", "r2"):
        assert world.engine.calls.count(("abort", request_id)) == 1
        world.tokens(1.5, request_id, b"", FinishReason.CANCELLED, ids=())
    assert [entry["cause"] for entry in world.finished] == ["downstream_remote_disconnect"] * 2
    assert [entry["state_when_gone"] for entry in world.finished] == ["paused", "streaming"]
    assert [entry["t_client_gone"] for entry in world.finished] == [1.4, 1.4]
    snapshot = world.snapshot(1.6)
    assert (snapshot.disconnects, snapshot.aborts, snapshot.totals.open_streams) == (2, 2, 0)


def test_an_end_seen_twice_counts_once(world):
    world.admit(1.0)
    world.tokens(1.1, "r1", b"a")
    world.at(1.2, record(ended=True), record(ended=True), PollDone("r1", cancelled=True, records_expired=False))
    world.tokens(1.3, "r1", b"", FinishReason.CANCELLED, ids=())
    snapshot = world.snapshot(1.4)
    assert (snapshot.disconnects, snapshot.aborts) == (1, 1)
    assert world.outbox.closed == ["r1"]


def test_a_client_that_left_before_its_request_came_is_not_served(world):
    world.at(0.9, record(ended=True, disconnected=True, detail="gone"))
    world.admit(1.0)
    assert world.engine.calls == [("submit", "r1"), ("abort", "r1")]
    assert world.outbox.closed == ["r1"]


def test_records_that_come_first_are_not_lost(world):
    world.at(0.9, record())
    world.admit(1.0)
    assert world.stream(1.1, "r1").sender.has_signal


def test_without_records_clients_are_asked_after(world):
    world.admit(1.0, rpc_id=None)
    assert world.driver.next_deadline() <= 2.0
    world.at(2.0)
    world.at(3.0)
    assert world.outbox.polls == [("r1", False)] * 2
    world.at(3.1, PollDone("r1", cancelled=True, records_expired=False))
    assert world.engine.calls[-1] == ("abort", "r1")


def test_with_records_nobody_is_asked(world):
    world.admit(1.0)
    world.at(1.1, record())
    for second in range(2, 10):
        world.at(float(second))
    assert world.outbox.polls == []


def test_nobody_is_asked_after_final(world):
    world.admit(1.0, rpc_id=None)
    world.tokens(1.1, "r1", b"a", FinishReason.STOP)
    world.admit(1.2)
    world.at(1.3, record())
    world.tokens(1.4, "r2", b"a", FinishReason.STOP)
    world.at(2.0)
    world.at(2.1, record(expired=True))
    assert world.outbox.polls == []


def test_first_polls_are_spread(world):
    for _ in range(16):
        world.admit(1.0, rpc_id=None)
    world.at(1.5)
    assert len(world.outbox.polls) == 8


def test_expired_records_ask_at_once_and_then_count_as_no_signal(world):
    world.admit(1.0)
    world.at(1.1, record())
    fill(world, "r1", 1.2)
    world.at(4.0, record(expired=True))
    assert world.outbox.polls[0] == ("r1", True)
    world.at(4.1, PollDone("r1", cancelled=False, records_expired=True))
    world.at(4.1 + 5.0)
    last = world.outbox.frames[-1][1]
    assert last.finish_reason is FinishReason.NO_SIGNAL
    assert world.engine.calls[-1] == ("abort", "r1")


def test_a_broken_send_ends_the_stream(world):
    world.admit(1.0)
    world.tokens(1.1, "r1", b"a")
    world.at(1.2, SendDone("r1", SendFailed("RuntimeError")))
    assert world.outbox.closed == ["r1"]
    world.tokens(1.3, "r1", b"", FinishReason.CANCELLED, ids=())
    assert world.finished[0]["finish_reason"] == "error"


def test_an_impossible_event_ends_its_stream_and_no_other(world):
    world.admit(1.0, "rpc-1")
    world.admit(1.0, "rpc-2")
    world.tokens(1.1, "r1", b"a")
    world.at(1.2, SendDone("r1", FrameSent(99)))
    assert ("abort", "r1") in world.engine.calls
    assert "frame 99" in world.log[0]
    world.tokens(1.3, "r1", b"", FinishReason.CANCELLED, ids=())
    world.sent_all(1.4)
    assert [end["finish_reason"] for end in world.finished] == ["error"]
    world.tokens(1.5, "r2", b"b")
    assert world.outbox.texts("r2") == ["b"]


def test_no_room_is_refused_with_limit_and_hint():
    world = World(admission={"max_streams": 1})
    world.admit(1.0)
    world.admit(1.1)
    ((message, code),) = world.outbox.refused
    assert message == "admission.max_streams: 2 needed, 1 allowed; try again in 1 s"
    assert code is ErrorCode.UNAVAILABLE
    assert world.snapshot(1.2).totals.refused == 1
    world.tokens(1.3, "r1", b"", FinishReason.STOP, ids=())
    world.sent_all(1.4)
    world.admit(1.5)
    assert len(world.outbox.refused) == 1


def test_refusals_of_bad_requests_are_counted(world):
    world.at(1.0, Refuse(None, None, "text_input: empty", ErrorCode.INVALID_ARG))
    assert world.outbox.refused == [("text_input: empty", ErrorCode.INVALID_ARG)]
    snapshot = world.snapshot(1.1)
    assert (snapshot.refused, snapshot.totals.accepted, snapshot.rpcs) == (1, 0, 0)


def test_draining_ends_streams_with_a_reason_and_refuses_new_ones(world):
    world.admit(1.0)
    world.tokens(1.1, "r1", b"a")
    done = Future()
    world.at(1.2, Drain(done))
    assert world.outbox.frames[-1][1].finish_reason is FinishReason.SHUTDOWN
    world.sent_all(1.3)
    assert not done.done()
    world.tokens(1.4, "r1", b"", FinishReason.CANCELLED, ids=())
    assert done.done()
    world.admit(1.5)
    ((message, code),) = world.outbox.refused
    assert (message, code) == ("the server is shutting down; try again elsewhere", ErrorCode.UNAVAILABLE)


def test_draining_nothing_is_done_at_once(world):
    done = Future()
    world.at(1.0, Drain(done))
    assert done.done()


def test_draining_a_stuck_reader_is_bounded_in_time(world):
    world.admit(1.0)
    world.at(1.1, record())
    fill(world, "r1", 1.2)
    done = Future()
    world.at(1.3, Drain(done))
    world.tokens(1.3, "r1", b"", FinishReason.CANCELLED, ids=())
    world.at(3.4)
    world.sent_all(3.5)
    assert done.done()
    assert world.finished[0]["finish_reason"] == "shutdown"


def test_a_dead_engine_ends_every_stream_and_takes_no_new_one(world):
    world.admit(1.0)
    world.admit(1.0)
    world.tokens(1.1, "r1", b"a", FinishReason.STOP)
    world.at(1.2, EngineDied())
    world.sent_all(1.3)
    assert sorted(entry["finish_reason"] for entry in world.finished) == ["error", "stop"]
    world.admit(1.4)
    assert "engine failed" in world.outbox.refused[0][0]


def test_run_to_completion_never_pauses():
    world = World(flow_control={"mode": "run_to_completion"})
    world.admit(1.0)
    world.at(1.1, record())
    fill(world, "r1", 1.2)
    assert world.engine.calls == [("submit", "r1")]


def test_late_news_of_closed_streams_is_ignored(world):
    world.admit(1.0)
    world.tokens(1.1, "r1", b"a", FinishReason.STOP)
    world.sent_all(1.2)
    world.at(
        1.3,
        SendDone("r1", FrameSent(0)),
        PollDone("r1", cancelled=True, records_expired=True),
        Tokens([TokenEvent("r1", (1,), b"a")], 1.3),
        record(5, 100, ended=True),
    )
    assert len(world.finished) == 1
