from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import replace

import pytest

from sluiceway.core.events import FinishReason, FrameSent, SendFailed
from sluiceway.core.record import Record
from sluiceway.core.reviews import Reviews
from sluiceway.engine.protocol import EngineLoad, SamplingParams, TokenEvent
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


CROWDED = EngineLoad(
    kv_blocks_total=100,
    kv_blocks_free=0,
    host_blocks_free=0,
    batch_streams=4,
    batch_free=4,
    waiting=1,
    oldest_waiting=None,
    step_s=0.02,
    prefill_tokens_per_s=1000.0,
    swap_blocks_per_s=1000.0,
)


class Engine:
    """Writes down what it is told."""

    def __init__(self):
        self.calls, self.requests = [], []

    def submit(self, request):
        self.calls.append(("submit", request.request_id))
        self.requests.append(request)

    def post(self, command):
        command(self)

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, *args))


class Outbox:
    """Takes what the pump would do; tests answer for it."""

    def __init__(self):
        self.frames, self.closed, self.refused, self.polls, self.answers = [], [], [], [], []

    def send(self, stream, frame):
        self.frames.append((stream.request_id, frame))

    def close(self, stream):
        self.closed.append(stream.request_id)

    def refuse(self, rpc_id, path, message, code):
        self.refused.append((message, code))

    def answer(self, rpc_id, path, levels):
        self.answers.append(levels)

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

    def admit(
        self,
        now,
        rpc_id="rpc",
        *,
        stream=True,
        max_tokens=1000,
        stream_id="",
        client_id="client",
        acks=False,
        **outputs,
    ):
        request = GenerateRequest(
            prompt="Q",
            client_id=client_id,
            rpc_id=rpc_id,
            acks=acks,
            stream=stream,
            echo=False,
            outputs=Outputs(**outputs),
            sampling=SamplingParams(max_tokens=max_tokens, stop=("END",)),
            stream_id=stream_id,
        )
        self.at(now, Admit(request, (1, 2), path=None))

    def load(self, now, **changes):
        """The engine's last step left it so; full, and with a request that waits, if not said otherwise."""
        self.at(now, Tokens([], now, replace(CROWDED, **changes)))

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


def test_a_reader_that_stops_is_paused_loses_its_kv_and_comes_back():
    world = World(policy={"mode": "drop"})
    world.admit(1.0)
    world.load(1.0)
    world.at(1.1, record())
    fill(world, "r1", 1.2)
    assert world.engine.calls[1:] == [("pause", "r1")]
    assert world.stream(1.3, "r1").sender.state == "paused"
    for tenth in range(13, 36):
        assert world.driver.next_deadline() < 10.0
        world.at(tenth / 10)
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


# --- the policy --------------------------------------------------------------------------------------


def stuck(now=1.0, *, stream_id="", max_tokens=1000, **settings):
    """A world with one stream whose client reads nothing: paused at ``now``."""
    world = World(**settings)
    world.admit(now, stream_id=stream_id, max_tokens=max_tokens)
    world.at(now, record())
    fill(world, "r1", now)
    assert world.engine.calls[-1] == ("pause", "r1")
    return world


def let_pass(world, start, end, **load):
    """Time in steps of 50 ms, with the engine's load before each."""
    for step in range(round((end - start) / 0.05) + 1):
        world.load(start + step * 0.05, **load)


def decisions(world):
    return [json.loads(line.removeprefix("decision ")) for line in world.log]


def test_nothing_is_decided_before_the_engine_said_how_it_is():
    world = stuck()
    world.at(2.0)
    assert world.log == []


def test_the_driver_wakes_up_for_the_policy():
    world = stuck(pump={"cancel_poll_s": 1000.0})
    world.load(1.1)
    assert 1.1 < world.driver.next_deadline() <= 1.6


def test_the_policy_learns_who_came_back_and_who_left(monkeypatch):
    learnt = []
    monkeypatch.setattr(Reviews, "remove", lambda self, request_id, now, returned: learnt.append(returned))
    world = stuck()
    world.at(2.0, record(ended=True, disconnected=True, detail="gone"))
    assert learnt[0] is False
    learnt.clear()
    world = stuck()
    for _ in range(20):
        frames = [frame for _, frame in world.outbox.frames]
        world.at(2.0, record(len(frames), sum(frame.wire_bytes for frame in frames)))
    assert learnt[0] is True


def test_with_nobody_waiting_a_stream_is_held_and_said_so_once():
    world = stuck()
    let_pass(world, 1.1, 5.0, kv_blocks_free=90, waiting=0)
    assert world.engine.calls[-1] == ("pause", "r1")
    (line,) = decisions(world)
    assert (line["request_id"], line["action"], line["reason"]) == ("r1", "hold", "no_pressure")
    assert line["state"] == "paused"
    assert line["kv_blocks"] == 13  # 2 of the prompt and 200 in blocks of 16
    snapshot = world.snapshot(5.0)
    assert (snapshot.behind, snapshot.decisions) == (1, {"hold": {"no_pressure": 1}})


@pytest.mark.parametrize(
    ("load", "settings", "call"),
    [
        ({"host_blocks_free": 50, "swap_blocks_per_s": 1e6, "prefill_tokens_per_s": 100.0}, {}, "swap_out"),
        ({"host_blocks_free": 0, "prefill_tokens_per_s": 1e6}, {}, "release_kv"),
        ({}, {"policy": {"mode": "drop"}}, "release_kv"),
    ],
)
def test_with_others_waiting_kv_goes_where_it_costs_least(load, settings, call):
    world = stuck(**settings)
    let_pass(world, 1.0, 4.0, **load)
    assert world.engine.calls[-1] == (call, "r1")
    line = decisions(world)[-1]
    assert world.snapshot(4.0).decisions[line["action"]][line["reason"]] == 1
    assert line["action"] == {"swap_out": "swap", "release_kv": "drop"}[call]


@pytest.mark.parametrize("settings", [{"policy": {"mode": "hold"}}, {"flow_control": {"mode": "run_to_completion"}}])
def test_the_arms_that_hold_do_nothing_else(settings):
    world = World(**settings)
    world.admit(1.0)
    world.at(1.0, record())
    fill(world, "r1", 1.0)
    let_pass(world, 1.0, 4.0, host_blocks_free=50)
    assert {call[0] for call in world.engine.calls} <= {"submit", "pause", "set_weight"}


def test_run_to_completion_is_bounded_by_the_spools_limit_for_a_stream():
    world = World(flow_control={"mode": "run_to_completion"}, spool={"max_stream_bytes": 300_000})
    world.admit(1.0)
    world.at(1.1, record())
    fill(world, "r1", 1.2, tokens=1700)
    assert ("pause", "r1") in world.engine.calls
    assert 300_000 <= world.stream(1.3, "r1").sender.backlog.bytes < 301_000 + 16_384


def test_running_ahead_is_the_spools_room_until_the_reader_has_caught_up():
    world = stuck(max_tokens=210)
    let_pass(world, 1.0, 3.0, prefill_tokens_per_s=1.0, step_s=0.0001)
    assert world.engine.calls[-1] == ("resume", "r1")
    granted = world.stream(3.0, "r1").sender.run_ahead_bytes
    assert granted > 0
    assert world.driver._resumes.spool.totals().granted_bytes == granted
    world.tokens(3.1, "r1", b"the end", FinishReason.LENGTH)
    world.sent_all(3.2)
    for _ in range(20):  # it reads on
        frames = [frame for _, frame in world.outbox.frames]
        world.at(3.3, record(len(frames), sum(frame.wire_bytes for frame in frames)))
        world.sent_all(3.3)
    assert world.finished[0]["finish_reason"] == "length"
    assert world.finished[0]["run_aheads"] == 1
    assert world.driver._resumes.spool.totals().granted_bytes == 0
    assert world.snapshot(3.4).behind == 0


def test_a_reader_that_is_silent_too_long_is_ended_with_a_word_and_a_reason():
    world = stuck(policy={"max_silence_s": [3.0]})
    let_pass(world, 1.0, 4.2, kv_blocks_free=90, waiting=0)
    assert world.outbox.frames[-1][1].finish_reason is FinishReason.STALLED
    assert world.engine.calls[-1] == ("abort", "r1")
    assert decisions(world)[-1]["reason"] == "silent"
    world.tokens(4.3, "r1", b"", FinishReason.CANCELLED, ids=())
    world.sent_all(4.4)
    assert world.finished[0]["cause"] == "silent"
    assert world.snapshot(4.5).behind == 0


def test_a_complete_answer_that_nobody_reads_is_ended_by_the_policy_too():
    world = stuck(policy={"max_silence_s": [3.0]})
    world.tokens(1.1, "r1", b"", FinishReason.STOP, ids=())
    let_pass(world, 1.2, 4.2)
    assert world.outbox.frames[-1][1].finish_reason is FinishReason.STALLED
    assert ("abort", "r1") not in world.engine.calls


def test_a_resumable_stream_is_let_go_and_goes_on():
    world = stuck(stream_id="a" * 32, policy={"max_silence_s": [3.0]})
    let_pass(world, 1.0, 4.2, kv_blocks_free=90, waiting=0)
    assert world.outbox.frames[-1][1].finish_reason is FinishReason.DETACHED
    assert ("resume", "r1") in world.engine.calls
    assert ("abort", "r1") not in world.engine.calls
    assert world.stream(4.3, "r1").sender.state == "detached"


def test_the_longest_wait_is_that_of_the_request_the_engine_names():
    world = stuck()
    world.admit(2.0, "other")
    world.load(3.5, oldest_waiting="r2")
    assert decisions(world)[-1]["longest_wait_s"] == 1.5


def test_a_client_that_left_is_not_looked_at_any_more():
    world = stuck()
    world.load(1.1)
    assert world.snapshot(1.2).behind == 1
    world.at(1.3, record(ended=True, disconnected=True, detail="gone"))
    assert world.snapshot(1.3).behind == 0


def test_the_engine_is_told_who_has_plenty_unread():
    world = World(flow_control={"cushion": None})
    world.admit(1.0)
    world.at(1.0, record())
    for tenth in range(40):
        world.tokens(1.0 + tenth / 10, "r1", b"word ")
    assert world.engine.calls[-1] == ("set_weight", "r1", 1 / 16)


# --- a short answer in place of the long one ---------------------------------------------------------

DEGRADED = {"enabled": True, "after_s": 5.0, "max_tokens": 8}


def test_a_silent_reader_may_get_a_short_answer_instead():
    world = stuck(degraded=DEGRADED)
    world.sent_all(1.5)
    sent = len(world.outbox.frames)
    world.at(6.0)
    assert world.engine.calls[-3:-1] == [("abort", "r1"), ("submit", "r1:degraded")]
    again = world.engine.requests[-1]
    assert again.prompt_token_ids == (1, 2)
    assert (again.sampling.max_tokens, again.sampling.temperature, again.sampling.stop) == (8, 0.0, ("END",))
    world.tokens(6.1, "r1", b"late")  # of the old one
    world.tokens(6.1, "r1", b"", FinishReason.CANCELLED, ids=())
    world.tokens(6.2, "r1:degraded", b"In short: ", ids=(1,))
    world.tokens(6.3, "r1:degraded", b"rivers.", FinishReason.STOP, ids=(2,))
    for _ in range(20):
        world.sent_all(6.4)
        frames = [frame for _, frame in world.outbox.frames]
        world.at(6.4, record(len(frames), sum(frame.wire_bytes for frame in frames)))
    world.sent_all(6.5)
    answer = [frame for _, frame in world.outbox.frames[sent:]]
    assert "".join(frame.text for frame in answer) == "In short: rivers."
    assert answer[0].first_token_index == 0
    assert [frame.sequence for _, frame in world.outbox.frames] == list(range(len(world.outbox.frames)))
    (entry,) = world.finished
    assert (entry["finish_reason"], entry["t_kv_free"]) == ("degraded", 6.3)
    assert world.snapshot(6.6).degraded == 1


def test_a_client_that_leaves_during_its_short_answer_ends_that_one():
    world = stuck(degraded=DEGRADED)
    world.at(6.0)
    world.at(6.1, record(ended=True, disconnected=True, detail="gone"))
    assert world.engine.calls[-1] == ("abort", "r1:degraded")
    world.tokens(6.2, "r1", b"", FinishReason.CANCELLED, ids=())
    assert world.finished == []
    world.tokens(6.3, "r1:degraded", b"", FinishReason.CANCELLED, ids=())
    assert world.finished[0]["finish_reason"] == "cancelled"


def test_an_engine_that_dies_ends_a_short_answer_once():
    world = stuck(degraded=DEGRADED)
    world.at(6.0)
    world.at(6.1, EngineDied())
    world.sent_all(6.2)
    assert [entry["finish_reason"] for entry in world.finished] == ["error"]


def test_answers_are_not_replaced_unless_a_deployment_says_so():
    world = stuck()
    world.at(30.0)
    assert [request.request_id for request in world.engine.requests] == ["r1"]
    assert world.driver._streams["r1"].prompt_token_ids == ()  # nor are prompts kept
