"""Clients that come back, on real senders and the real ledger; only engine, Triton and Redis are played."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sluiceway.core.commands import (
    AbortGeneration,
    CloseSilently,
    Frame,
    PauseGeneration,
    ReleaseKv,
    ResumeGeneration,
    SendFrame,
    SetWeight,
    SpoolFrame,
    StreamClosed,
)
from sluiceway.core.decision import Action, Decision
from sluiceway.core.events import (
    ClientGone,
    Decided,
    EngineFinished,
    FinishReason,
    FrameSent,
    TokensProduced,
)
from sluiceway.core.record import Record
from sluiceway.core.sender import BoundedSender
from sluiceway.core.spool import SpoolPosition
from sluiceway.core.spool_errors import StreamForeign, StreamUnknown
from sluiceway.core.window import DeliveryWindow
from sluiceway.runtime.codec import GenerateRequest
from sluiceway.runtime.config import Config
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.messages import Admit, ClientElsewhere, SpoolFound, SpoolLost, SpoolRead
from sluiceway.runtime.resume import Resumes
from sluiceway.runtime.spool_reader import SpoolUnreachable


class Engine:
    """An engine's side of one stream."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *_: self.calls.append(name)


@dataclass
class Stream:
    sender: BoundedSender
    source: object
    stream_id: str
    window: DeliveryWindow
    sent: list = field(default_factory=list)
    is_silent: bool = False
    reason: FinishReason | None = None
    body: int = 0

    @property
    def text(self):
        return "".join(frame.text for frame in self.sent)


class World:
    """As the driver: commands to their source, frames to the client and the spool."""

    def __init__(self, writer=None, reader=None, **settings):
        self.config = Config.model_validate(settings)
        self.resumes = Resumes(self.config, self, writer=writer, reader=reader)
        self.streams, self.refused, self.closed = {}, [], {}
        self.count, self.is_full, self.is_gone = 0, False, False

    def _open(self, stream_id, source, now, **position):
        self.count += 1
        request_id = f"r{self.count}"
        window = DeliveryWindow(self.config.flow_control.window.size())
        window.open(request_id)
        limits = self.config.flow_control.limits(110)
        sender = BoundedSender(request_id, limits, window, now, resumable=True, **position)
        self.streams[request_id] = Stream(sender, source, stream_id, window)
        return request_id

    def begin(self, now, stream_id="s"):
        source = Engine()
        request_id = self._open(stream_id, source, now)
        self.resumes.open(stream_id, request_id, source)
        return request_id

    def attach(self, message, position, source, now):
        if self.is_full:
            return None
        where = {"first_sequence": position.sequence, "first_token_index": position.first_token_index}
        return self._open(message.request.stream_id, source, now, **where)

    def attached(self, request_id, now):
        if self.is_gone:
            self.apply_to(request_id, ClientGone("ended"), now)

    def refuse(self, message, text, code):
        self.refused.append((text, code))

    def come_back(self, now, frame, stream_id="s"):
        request = GenerateRequest(
            prompt="", client_id="", rpc_id=None, stream=True, echo=False, stream_id=stream_id, resume_frame=frame
        )
        self.resumes.come_back(Admit(request, (), path=None), now)
        self.resumes.settle(now)
        return f"r{self.count}"

    def apply_to(self, request_id, event, now):
        if (stream := self.streams.get(request_id)) is None:
            return
        for command in stream.sender.handle(event, now):
            match command:
                case SendFrame(frame, is_notice):
                    stream.sent.append(frame)
                    if not is_notice:
                        self.resumes.keep(stream.stream_id, request_id, frame)
                case SpoolFrame(frame):
                    self.resumes.keep(stream.stream_id, request_id, frame)
                case CloseSilently():
                    stream.is_silent = True
                case PauseGeneration():
                    stream.source.pause()
                case ResumeGeneration():
                    stream.source.resume()
                case ReleaseKv():
                    stream.source.release_kv()
                case SetWeight(weight):
                    stream.source.set_weight(weight)
                case AbortGeneration():
                    stream.source.abort()
                case StreamClosed(reason):
                    stream.reason = reason
                    self.closed[request_id] = self.streams.pop(request_id)
                    self.resumes.closed(stream.stream_id, request_id, reason, now)
        if request_id in self.streams:
            self.resumes.moved(stream.stream_id, request_id, stream.sender.state, now)

    def do(self, now, request_id, *events):
        for event in events:
            self.apply_to(request_id, event, now)
        self.resumes.settle(now)

    def make(self, now, request_id, *texts, reason=None):
        self.do(now, request_id, *(TokensProduced((7,), text.encode()) for text in texts))
        if reason is not None:
            self.do(now, request_id, EngineFinished(reason))

    def read_all(self, now, request_id, rounds=1000):
        """The client reads everything that comes, until nothing does."""
        stream = self.streams[request_id]
        for _ in range(rounds):
            before = len(stream.sent)
            for frame in stream.sent:
                self.do(now, request_id, FrameSent(frame.sequence))
            messages = len(stream.sent)
            body = sum(frame.wire_bytes for frame in stream.sent)
            for progress in stream.window.observe(Record("rpc", messages, body, body)).values():
                self.do(now, request_id, progress)
                self.resumes.delivered(stream.stream_id, request_id, progress.delivered_frames)
            self.resumes.settle(now)
            if len(stream.sent) == before or request_id not in self.streams:
                return stream
        raise AssertionError("it does not end")

    @property
    def totals(self):
        return self.resumes.statistics()


def numbers(stream):
    return [frame.sequence for frame in stream.sent]


@pytest.fixture
def world():
    return World()


def test_a_client_that_vanished_gets_exactly_the_rest_while_the_answer_is_still_being_made(world):
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ", "two ", "three ")
    first = world.streams[owner]
    world.do(1.2, owner, ClientGone("reset"))
    assert first.is_silent
    world.make(1.3, owner, "four ")
    back = world.come_back(2.0, 2)
    world.make(2.1, owner, "five", reason=FinishReason.STOP)
    second = world.read_all(2.2, back)
    assert (numbers(second), second.text) == ([2, 3, 4, 5], "three four five")
    assert second.sent[-1].finish_reason is FinishReason.STOP
    assert [frame.first_token_index for frame in second.sent] == [2, 3, 4, 5]
    assert owner in world.closed
    assert world.closed[back].reason is FinishReason.STOP


def test_what_the_client_had_not_read_is_not_lost_with_it(world):
    owner = world.begin(1.0)
    words = [f"{n:04d} " * 40 for n in range(120)]
    world.make(1.1, owner, *words)
    stuck = world.streams[owner]
    assert "pause" in stuck.source.calls
    world.do(2.0, owner, ClientGone("reset"))
    assert "resume" in stuck.source.calls
    back = world.come_back(3.0, len(stuck.sent) - 1)
    world.make(3.1, owner, "end", reason=FinishReason.LENGTH)
    again = world.read_all(3.2, back)
    text = "".join(frame.text for frame in stuck.sent[:-1]) + again.text
    assert text == "".join(words) + "end"


def test_a_detached_client_is_told_and_may_count_the_notice_as_a_frame_or_not(world):
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ", "two ")
    world.do(1.2, owner, Decided(Decision(action=Action.DETACH, reason="too_slow")))
    told = world.streams[owner].sent[-1]
    assert (told.sequence, told.text, told.finish_reason) == (2, "", FinishReason.DETACHED)
    world.make(1.3, owner, "three", reason=FinishReason.STOP)
    for now, frame, expected in ((2.0, 2, [2, 3, 4]), (3.0, 3, [3, 4])):
        again = world.read_all(now, world.come_back(now, frame))
        assert (again.text, numbers(again)) == ("three", expected)


def test_a_client_that_comes_back_takes_over_from_a_connection_that_only_looks_open(world):
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ", "two ")
    back = world.come_back(2.0, 1)
    assert world.streams[owner].sent[-1].finish_reason is FinishReason.DETACHED
    world.make(2.1, owner, "three")
    assert world.streams[back].text == "two three"
    again = world.come_back(3.0, 1)
    assert world.streams[back].sent[-1].finish_reason is FinishReason.DETACHED
    world.do(3.1, back, FrameSent(world.streams[back].sent[-1].sequence))
    assert back in world.closed
    world.make(3.2, owner, " four", reason=FinishReason.STOP)
    assert world.read_all(3.3, again).text == "two three four"
    assert world.totals["taken_over"] == 2


def test_a_returned_client_that_vanishes_can_come_back_again(world):
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ", "two ", "three ")
    world.do(1.2, owner, ClientGone("reset"))
    back = world.come_back(2.0, 1)
    world.do(2.1, back, ClientGone("reset"))
    assert back in world.closed
    world.make(2.2, owner, "four", reason=FinishReason.STOP)
    again = world.come_back(3.0, 2)
    assert world.read_all(3.1, again).text == "three four"
    assert world.totals["generating"] == world.totals["returned_open"] == 0


def test_a_slow_returned_client_is_fed_as_fast_as_it_reads(world):
    owner = world.begin(1.0)
    world.do(1.1, owner, ClientGone("reset"))
    words = [f"{n:04d} " * 40 for n in range(300)]
    world.make(1.2, owner, *words, reason=FinishReason.LENGTH)
    back = world.come_back(2.0, 0)
    slow = world.streams[back]
    assert slow.sender.backlog.bytes <= world.config.flow_control.limits(110).max_stream_bytes
    assert 0 < len(slow.sent) < 200
    assert world.read_all(3.0, back).text == "".join(words)
    assert numbers(slow) == list(range(len(slow.sent)))


def test_whoever_read_to_the_end_leaves_room_and_others_expire(world):
    read = world.begin(1.0, "read")
    world.make(1.1, read, "text", reason=FinishReason.STOP)
    world.read_all(1.2, read)
    unread = world.begin(1.0, "unread")
    world.make(1.1, unread, "text")
    world.do(1.3, unread, ClientGone("reset"))
    world.make(1.4, unread, " more", reason=FinishReason.STOP)
    assert world.resumes.spool._budget.read.first() == "read"
    assert world.resumes.next_deadline() == pytest.approx(301.2)
    world.resumes.settle(301.4)
    assert world.totals["streams"] == 0


def test_a_stream_whose_client_stays_away_is_ended_when_it_expires(world):
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ")
    world.do(1.2, owner, ClientGone("reset"))
    engine = world.streams[owner].source
    world.resumes.settle(301.1)
    assert "abort" not in engine.calls
    world.resumes.settle(301.2)
    assert engine.calls[-1] == "abort"
    world.do(301.3, owner, EngineFinished(FinishReason.CANCELLED))
    assert owner in world.closed
    world.come_back(302.0, 0)
    assert world.refused[-1][0].startswith("stream_expired: ")
    assert world.totals["charged_bytes"] == 0


def test_a_full_spool_makes_the_engine_wait_and_a_client_that_reads_lets_it_go_on():
    world = World(spool={"max_stream_bytes": 100_000, "retained_bytes": 1000})
    owner = world.begin(1.0)
    world.do(1.1, owner, ClientGone("reset"))
    engine = world.streams[owner].source
    words = []
    while "pause" not in engine.calls:
        words.append(f"{len(words):04d} " * 40)
        world.make(1.2, owner, words[-1])
    assert engine.calls[-2:] == ["pause", "release_kv"]
    assert 70_000 < world.totals["used_bytes"] <= 80_000
    back = world.come_back(2.0, 0)
    world.read_all(2.1, back)
    assert engine.calls[-1] == "resume"
    world.make(2.2, owner, "end", reason=FinishReason.LENGTH)
    assert world.read_all(2.3, back).text == "".join(words) + "end"


def test_a_spool_that_others_filled_ends_an_answer_with_quota_and_says_so():
    world = World(spool={"max_stream_bytes": 100_000, "max_bytes": 160_000, "retained_bytes": 1000})
    owner, other = world.begin(1.0, "s"), world.begin(1.0, "t")
    world.do(1.1, owner, ClientGone("reset"))
    made = 0
    while "abort" not in (engine := world.streams[owner].source).calls:
        world.make(1.2, owner, "x" * 1000)
        made += 1
        assert made < 200
    world.do(1.3, owner, EngineFinished(FinishReason.CANCELLED))
    back = world.read_all(2.0, world.come_back(2.0, 0))
    assert back.sent[-1].finish_reason is FinishReason.QUOTA
    assert set(back.text) == {"x"}
    assert world.totals["cut"] == 1
    assert engine.calls[-1] == "abort"
    assert other in world.streams


@pytest.mark.parametrize(
    ("stream_id", "frame", "expected"),
    [
        ("never", 0, "stream_unknown: "),
        ("s", 4, "frame_unknown: "),
        ("done", 2, "stream_complete: "),
    ],
)
def test_a_refusal_begins_with_its_code(world, stream_id, frame, expected):
    world.make(1.1, world.begin(1.0), "one ")
    done = world.begin(1.0, "done")
    world.make(1.1, done, "one ", reason=FinishReason.STOP)
    world.come_back(2.0, frame, stream_id)
    assert world.refused == [(world.refused[0][0], ErrorCode.INVALID_ARG)]
    assert world.refused[0][0].startswith(expected)
    assert world.totals["refusals"] == {expected[:-2]: 1}


def test_no_room_for_the_returning_client_changes_nothing_for_the_stream(world):
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ")
    world.do(1.2, owner, ClientGone("reset"))
    world.is_full = True
    world.come_back(2.0, 1)
    world.is_full = False
    assert world.resumes.next_deadline() == 302.0
    world.make(2.1, owner, "two", reason=FinishReason.STOP)
    assert world.read_all(3.1, world.come_back(3.0, 1)).text == "two"


def test_a_client_that_left_before_its_stream_was_open_holds_nothing_up(world):
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ")
    world.do(1.2, owner, ClientGone("reset"))
    world.is_gone = True
    back = world.come_back(2.0, 1)
    world.is_gone = False
    assert back in world.closed
    world.make(2.1, owner, "two", reason=FinishReason.STOP)
    assert world.read_all(3.1, world.come_back(3.0, 1)).text == "two"


def test_a_returned_client_that_was_fed_everything_and_is_stuck_is_let_go_too():
    world = World(flow_control={"window": {"bytes": 4096, "tokens": 100, "frames": 64}})
    owner = world.begin(1.0)
    world.do(1.1, owner, ClientGone("reset"))
    words = [f"{n:04d} " * 40 for n in range(30)]
    world.make(1.2, owner, *words, reason=FinishReason.LENGTH)
    stuck = world.come_back(2.0, 0)
    assert world.streams[stuck].source.is_over
    assert len(world.streams[stuck].sent) < 30
    again = world.come_back(3.0, 0)
    assert world.streams[stuck].sent[-1].finish_reason is FinishReason.DETACHED
    assert world.read_all(3.1, again).text == "".join(words)
    world.do(3.2, stuck, FrameSent(world.streams[stuck].sent[-1].sequence))
    assert stuck in world.closed


def test_a_stream_that_could_not_be_kept_goes_on_with_its_client_and_ends_with_it(world):
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ")
    world.resumes._abandon("s")
    world.make(1.2, owner, "two ")
    assert world.streams[owner].text == "one two "
    world.do(1.3, owner, ClientGone("reset"))
    assert world.streams[owner].source.calls[-1] == "abort"
    world.do(1.4, owner, EngineFinished(FinishReason.CANCELLED))
    assert owner in world.closed
    world.come_back(2.0, 0)
    assert world.refused[-1][0].startswith("stream_expired: ")


# --- connections that only look open, and what only they say ----------------------------------------


def small(**settings):
    """A spool that keeps nothing of what was delivered."""
    return World(spool={"max_stream_bytes": 200_000, "max_bytes": 400_000, "retained_bytes": 0}, **settings)


def make_room(world):
    """Somebody needs all the room that may be had."""
    assert world.resumes.spool.grant("all", "", world.resumes.spool.free_bytes)
    world.resumes.spool.revoke("all")


def test_who_takes_over_an_answer_whose_last_frame_was_out_may_lose_that_one_too():
    world = small()
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ", "two", reason=FinishReason.STOP)
    assert world.streams[owner].sent[-1].finish_reason is FinishReason.STOP
    back = world.come_back(2.0, 0)
    world.resumes.delivered("s", owner, 3)  # into buffers of a connection that nobody reads
    world.do(2.1, back, ClientGone("reset"))
    world.do(2.2, owner, *(FrameSent(sequence) for sequence in range(3)))
    assert owner in world.closed
    make_room(world)
    again = world.come_back(3.0, 0)
    assert world.refused == []
    assert world.read_all(3.1, again).text == "one two"


def test_what_reached_the_client_before_the_last_is_not_what_the_last_one_has():
    world = small()
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ", "two ")
    before = world.come_back(2.0, 0)
    last = world.come_back(3.0, 0)
    world.resumes.delivered("s", before, 2)
    world.resumes.delivered("s", owner, 2)
    world.do(3.1, last, ClientGone("reset"))
    world.make(3.2, owner, "three", reason=FinishReason.STOP)
    assert world.read_all(4.1, world.come_back(4.0, 0)).text == "one two three"


def test_room_is_made_of_answers_that_were_read_and_of_no_others():
    world = small(flow_control={"window": {"bytes": 4096, "tokens": 100, "frames": 64}})
    for stream_id in ("read", "read after a return", "left", "let go"):
        owner = world.begin(1.0, stream_id)
        if stream_id != "read":
            world.do(1.1, owner, ClientGone("reset"))
        world.make(1.2, owner, *["text " * 100] * 15, reason=FinishReason.STOP)
        if stream_id == "read":
            world.read_all(1.3, owner)
        elif stream_id == "read after a return":
            world.read_all(1.3, world.come_back(1.3, 0, stream_id))
        elif stream_id == "let go":
            stuck = world.come_back(1.3, 0, stream_id)
            assert world.streams[stuck].source.is_over
            world.do(1.4, stuck, Decided(Decision(action=Action.CANCEL, reason="silent")))
            world.do(1.5, stuck, *(FrameSent(each.sequence) for each in world.streams[stuck].sent))
            assert world.closed[stuck].reason is FinishReason.DETACHED
    make_room(world)
    for stream_id in ("read", "read after a return", "left", "let go"):
        world.come_back(2.0, 14, stream_id)
    assert [text.partition(":")[0] for text, _ in world.refused] == ["stream_expired"] * 2
    assert world.totals["evicted"] == 2


def test_a_client_is_not_made_to_wait_for_what_it_has_not_read_yet():
    world = small()
    world.resumes._owners._max_stream_bytes = 100
    owner = world.begin(1.0)
    world.make(1.1, owner, *["x" * 100] * 10)
    assert world.totals["held"] == 0
    assert "release_kv" not in world.streams[owner].source.calls


def test_a_stream_that_needs_more_room_than_was_reserved_goes_on_with_its_client():
    world = small()
    world.resumes._floor_bytes = 0
    owner = world.begin(1.0)
    assert world.resumes.spool.grant("others", "", world.resumes.spool.free_bytes)
    world.make(1.1, owner, "one ", "two", reason=FinishReason.STOP)
    stream = world.read_all(1.2, owner)
    assert (stream.text, stream.reason) == ("one two", FinishReason.STOP)
    assert (world.totals["abandoned"], world.totals["cut"]) == (1, 0)


def test_an_answer_that_ended_without_its_last_frame_says_so_to_whoever_comes_back(world):
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ")
    world.do(1.2, owner, ClientGone("reset"))
    back = world.come_back(2.0, 0)
    world.resumes.closed("s", owner, FinishReason.ERROR, 2.1)
    stream = world.read_all(2.2, back)
    assert (stream.text, stream.reason) == ("one ", FinishReason.ERROR)


def test_frames_that_are_gone_under_a_client_end_its_answer_with_error():
    world = World(flow_control={"window": {"bytes": 4096, "tokens": 100, "frames": 64}})
    owner = world.begin(1.0)
    world.do(1.1, owner, ClientGone("reset"))
    world.make(1.2, owner, *["text " * 200] * 150, reason=FinishReason.STOP)
    back = world.come_back(2.0, 0)
    assert world.streams[back].source.is_paused
    world.resumes.spool.remove("s")
    stream = world.read_all(2.1, back)
    assert stream.sent[-1].finish_reason is FinishReason.ERROR
    assert back in world.closed


def test_nothing_is_remembered_of_streams_that_are_over(world):
    for n in range(3):
        owner = world.begin(1.0, f"s{n}")
        world.make(1.1, owner, "one ")
        back = world.come_back(2.0, 0, f"s{n}")
        world.do(2.1, back, ClientGone("reset"))
        world.make(2.2, owner, "two", reason=FinishReason.STOP)
        world.do(2.3, owner, *(FrameSent(each.sequence) for each in world.streams[owner].sent))
    assert not world.streams
    kept = world.resumes._owners, world.resumes._replays, world.resumes._replays._client_of, world.resumes._ending
    assert [len(each) for each in kept] == [0, 0, 0, 0]


class Reader:
    """What is asked of the thread that reads Redis."""

    def __init__(self):
        self.calls, self.errors = [], 0

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))


class Writer(Reader):
    def refresh(self, streams):
        self.calls.append(("refresh", sorted(streams)))

    def statistics(self):
        return SpoolPosition(sequence=0, first_token_index=0)


def frame(world, sequence, text="x ", reason=None):
    return Frame(sequence, sequence, (7,), text, 0, reason)


def test_another_replicas_stream_is_looked_for_in_redis_and_read_batch_by_batch():
    world = World(writer=Writer(), reader=Reader())
    reader = world.resumes._reader
    world.come_back(1.0, 3)
    assert reader.calls == [("look_up", "resume-1", "s", "", 3)]
    world.resumes.found(SpoolFound("resume-1", SpoolPosition(sequence=3, first_token_index=30)), 1.1)
    world.resumes.settle(1.1)
    assert reader.calls[1:] == []
    world.resumes.read(SpoolRead("resume-1", (frame(world, 3, "three "), frame(world, 4, "four "))))
    world.resumes.settle(1.2)
    assert reader.calls[1:] == [("more", "resume-1", 3)]
    world.read_all(1.3, "r1")
    world.resumes.read(SpoolRead("resume-1", (frame(world, 5, "five "),)))
    world.resumes.settle(1.4)
    assert reader.calls[2:] == [("more", "resume-1", 5)]
    world.resumes.read(SpoolRead("resume-1", (frame(world, 6, "six", FinishReason.STOP),)))
    world.resumes.settle(1.5)
    stream = world.read_all(1.6, "r1")
    assert (stream.text, stream.reason) == ("three four five six", FinishReason.STOP)
    assert reader.calls[3:] == [("leave", "resume-1")]


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (StreamUnknown("no"), ErrorCode.INVALID_ARG),
        (StreamForeign("no"), ErrorCode.INVALID_ARG),
        (SpoolUnreachable("no"), ErrorCode.UNAVAILABLE),
    ],
)
def test_what_redis_refuses_is_refused(refusal, code):
    world = World(writer=Writer(), reader=Reader())
    world.come_back(1.0, 3)
    world.resumes.found(SpoolFound("resume-1", refusal), 1.1)
    assert world.refused == [(f"{refusal.code}: no", code)]


def test_a_slow_client_of_another_replicas_stream_is_not_read_ahead_for():
    world = World(writer=Writer(), reader=Reader())
    reader = world.resumes._reader
    world.come_back(1.0, 0)
    world.resumes.found(SpoolFound("resume-1", SpoolPosition(sequence=0, first_token_index=0)), 1.1)
    asked, sequence = 0, 0
    while len([call for call in reader.calls if call[0] == "more"]) > asked or not asked:
        asked = len([call for call in reader.calls if call[0] == "more"])
        batch = tuple(frame(world, sequence + n, "x" * 400) for n in range(10))
        world.resumes.read(SpoolRead("resume-1", batch))
        world.resumes.settle(1.2)
        sequence += 10
        assert sequence < 1000
    assert sequence < 120
    stream = world.read_all(2.0, "r1")
    assert len(stream.sent) == sequence
    assert reader.calls[-1][:2] == ("more", "resume-1")


def test_a_stream_lost_on_the_way_ends_with_error_after_what_came():
    world = World(writer=Writer(), reader=Reader())
    world.come_back(1.0, 0)
    world.resumes.found(SpoolFound("resume-1", SpoolPosition(sequence=0, first_token_index=0)), 1.1)
    words = [f"{n:04d} " * 40 for n in range(200)]
    world.resumes.read(SpoolRead("resume-1", tuple(frame(world, n, word) for n, word in enumerate(words))))
    world.resumes.settle(1.2)
    assert world.streams["r1"].source.is_paused
    world.resumes.lost(SpoolLost("resume-1", "the replica that made the answer is gone"))
    stream = world.read_all(1.3, "r1")
    assert (stream.text, stream.sent[-1].finish_reason) == ("".join(words), FinishReason.ERROR)
    assert "r1" in world.closed


def test_a_stream_that_is_lost_while_its_client_waits_ends_at_once():
    world = World(writer=Writer(), reader=Reader())
    world.come_back(1.0, 0)
    world.resumes.found(SpoolFound("resume-1", SpoolPosition(sequence=0, first_token_index=0)), 1.1)
    world.resumes.settle(1.2)
    world.resumes.lost(SpoolLost("resume-1", "the replica that made the answer is gone"))
    world.resumes.settle(1.3)
    assert world.streams["r1"].sent[-1].finish_reason is FinishReason.ERROR


def test_a_client_that_went_to_another_replica_is_let_go_and_paces_the_engine_from_there():
    world = World(writer=Writer(), reader=Reader(), spool={"max_stream_bytes": 100_000, "retained_bytes": 1000})
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ")
    world.resumes.elsewhere(ClientElsewhere("s", 1, is_new=True), 1.2)
    engine = world.streams[owner].source
    assert world.streams[owner].sent[-1].finish_reason is FinishReason.DETACHED
    made = 1
    while "pause" not in engine.calls:
        world.make(1.3, owner, "x" * 500)
        made += 1
    world.resumes.elsewhere(ClientElsewhere("s", made // 3, is_new=False), 100.0)
    world.resumes.settle(100.0)
    assert 50_000 < world.resumes.spool.undelivered_bytes("s") < 75_000
    assert engine.calls[-2:] == ["pause", "release_kv"]
    world.resumes.elsewhere(ClientElsewhere("s", made // 2, is_new=False), 200.0)
    world.resumes.settle(200.0)
    assert engine.calls[-1] == "resume"
    assert world.resumes.next_deadline() == 500.0


def test_a_late_notice_does_not_take_a_client_away_that_came_back_to_us():
    world = World(writer=Writer(), reader=Reader())
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ")
    world.resumes.elsewhere(ClientElsewhere("s", 1, is_new=True), 1.2)
    back = world.come_back(1.3, 1)
    world.resumes.elsewhere(ClientElsewhere("s", 1, is_new=False), 1.4)
    assert world.resumes.next_deadline() is None
    world.make(1.5, owner, "two", reason=FinishReason.STOP)
    assert world.read_all(1.6, back).text == "two"


def test_what_is_kept_is_written_to_redis_too():
    world = World(writer=Writer(), reader=Reader())
    calls = world.resumes._kept._writer.calls
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ", reason=FinishReason.STOP)
    world.read_all(1.2, owner)
    world.resumes.settle(150.0)
    world.resumes.settle(302.0)
    kinds = [call[0] for call in calls]
    assert kinds[0] == "begin"
    assert [call[2] for call in calls if call[0] == "keep"] == [0, 1]
    assert ("refresh", ["s"]) in calls
    assert ("forget", "s") in calls


def test_redis_is_not_asked_about_more_streams_than_may_be_open():
    world = World(writer=Writer(), reader=Reader(), admission={"max_streams": 1})
    world.come_back(1.0, 3, "one")
    world.come_back(1.1, 3, "other")
    assert [call[2] for call in world.resumes._reader.calls] == ["one"]
    assert world.refused[0][0].startswith("stream_unknown: ")


def test_redis_hears_that_there_was_no_room_for_the_client():
    world = World(writer=Writer(), reader=Reader())
    world.come_back(1.0, 3)
    world.is_full = True
    world.resumes.found(SpoolFound("resume-1", SpoolPosition(sequence=3, first_token_index=30)), 1.1)
    assert world.resumes._reader.calls[1:] == [("leave", "resume-1")]


def test_a_notice_that_a_client_is_elsewhere_still_does_not_count_while_it_is_here():
    world = World(writer=Writer(), reader=Reader())
    owner = world.begin(1.0)
    world.make(1.1, owner, "one ")
    world.resumes.elsewhere(ClientElsewhere("s", 1, is_new=False), 1.2)
    assert world.resumes.next_deadline() is None
    assert world.streams[owner].sent[-1].finish_reason is None
