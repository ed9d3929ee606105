"""One stream, step by step, with literal times."""

from __future__ import annotations

import pytest

from core.streams import LIMITS, OVERHEAD, Stream, check_whole_life, limits, names
from sluiceway.core.commands import (
    AbortGeneration,
    CloseSilently,
    Frame,
    PauseGeneration,
    ReleaseKv,
    SendFrame,
    StreamClosed,
)
from sluiceway.core.decision import Action, Decision
from sluiceway.core.events import (
    AbortRequested,
    ClientGone,
    DeadlineReached,
    Decided,
    EngineFinished,
    Event,
    FinishReason,
    FrameReplayed,
    FrameSent,
    Progress,
    SendFailed,
    SignalLost,
    TokensProduced,
)
from sluiceway.core.limits import Size
from sluiceway.core.record import Record
from sluiceway.core.sender import BoundedSender
from sluiceway.core.states import State
from sluiceway.core.transitions import IllegalEventError
from sluiceway.core.window import DeliveryWindow

# --- the ordinary life -------------------------------------------------------------------------------


def test_a_token_leaves_at_once_as_a_frame_of_its_own() -> None:
    stream = Stream()
    assert stream.sender.state is State.WAITING
    assert stream.produce(b"Hello") == [SendFrame(Frame(0, 0, (0,), "Hello", 5 + OVERHEAD))]
    assert stream.sender.state is State.STREAMING


def test_a_stream_that_is_read_ends_with_reason_final_and_close() -> None:
    stream = Stream()
    stream.deliver()
    for _ in range(50):
        stream.produce()
        stream.deliver()
    stream.pump_lags = True
    assert stream.finish() == [SendFrame(Frame(50, 50, (), "", OVERHEAD, FinishReason.STOP))]
    assert stream.sender.state is State.DRAINING
    assert stream.return_sends() == [StreamClosed(FinishReason.STOP)]
    assert stream.sender.state is State.FINISHED
    assert stream.kinds() == ["StreamClosed"]
    assert stream.text == "word " * 50


def test_an_answer_without_tokens_is_one_empty_frame() -> None:
    stream = Stream()
    assert stream.finish(FinishReason.LENGTH) == [
        SendFrame(Frame(0, 0, (), "", OVERHEAD, FinishReason.LENGTH)),
        StreamClosed(FinishReason.LENGTH),
    ]


def test_an_answer_that_fits_the_window_needs_no_signal_however_long_it_takes() -> None:
    stream = Stream()
    for _ in range(7):
        stream.now += 1_000.0
        stream.produce()
        assert stream.sender.next_deadline() is None
    assert stream.finish()[-1] == StreamClosed(FinishReason.STOP)
    assert stream.kinds() == ["StreamClosed"]


def test_an_engine_error_ends_the_stream_with_that_reason_after_what_was_made() -> None:
    stream = Stream()
    stream.produce(b"half ")
    assert stream.finish(FinishReason.ERROR)[-1] == StreamClosed(FinishReason.ERROR)
    assert stream.text == "half "


# --- merging -----------------------------------------------------------------------------------------


def test_with_merge_frames_unconfirmed_increments_wait_and_leave_together() -> None:
    stream = Stream()
    stream.deliver()
    stream.produce(b"a", times=4)
    assert stream.produce(b"b", times=3) == []
    assert stream.deliver(1) == [SendFrame(Frame(4, 4, (4, 5, 6), "bbb", 3 + OVERHEAD))]


def test_a_full_frame_leaves_although_merging() -> None:
    stream = Stream(
        limits(high=Size(bytes=1000, tokens=600, frames=100), window=Size(bytes=900, tokens=900, frames=90))
    )
    stream.deliver()
    stream.produce(b"a", times=4)
    assert stream.produce(b"x" * 30) == []
    assert stream.produce(b"y" * 30) == [SendFrame(Frame(4, 4, (4,), "x" * 30, 30 + OVERHEAD))]


def test_the_end_of_the_answer_does_not_wait_to_be_merged() -> None:
    stream = Stream()
    stream.deliver()
    stream.produce(b"a", times=4)
    stream.produce(b"b")
    assert stream.finish()[0] == SendFrame(Frame(4, 4, (4,), "b", 1 + OVERHEAD, FinishReason.STOP))


def test_without_a_signal_nothing_waits_for_news_that_may_never_come() -> None:
    stream = Stream()
    assert len(stream.produce(b"a", times=6)) == 6


def test_while_sends_do_not_return_increments_merge() -> None:
    stream = Stream(pump_lags=True)
    stream.produce(b"a", times=3)
    assert stream.produce(b"b", times=4) == []
    assert stream.return_sends(1) == [SendFrame(Frame(3, 3, (3, 4, 5, 6), "bbbb", 4 + OVERHEAD))]


def test_merge_frames_of_zero_still_sends() -> None:
    stream = Stream(limits(merge_frames=0))
    stream.deliver()
    assert len(stream.produce()) == 1
    assert stream.produce() == []
    assert len(stream.deliver()) == 1


@pytest.mark.parametrize(
    "window", [Size(bytes=40, tokens=100, frames=8), Size(bytes=200, tokens=5, frames=8)], ids=["bytes", "tokens"]
)
def test_merged_text_never_makes_a_frame_larger_than_the_window(window: Size) -> None:
    stream = Stream(limits(window=window))
    stream.deliver()
    stream.produce(times=30)
    stream.finish()
    stream.deliver_until(State.FINISHED)
    assert max(frame.wire_bytes for frame in stream.frames) <= window.bytes
    assert max(len(frame.token_ids) for frame in stream.frames) <= window.tokens
    assert stream.text == "word " * 30


# --- pause and resume --------------------------------------------------------------------------------


def paused_stream(**changes: object) -> Stream:
    """Never read; paused at 100.0 with signal; the window is full."""
    stream = Stream(limits(**changes))
    stream.deliver()
    stream.produce_until(State.PAUSED)
    return stream


def test_above_high_pauses_once() -> None:
    stream = paused_stream()
    assert stream.kinds() == ["PauseGeneration"]
    assert stream.sender.backlog.exceeds(LIMITS.high)
    stream.produce(times=2)  # already on their way when the engine heard of the pause
    assert stream.kinds() == ["PauseGeneration"]
    assert stream.sender.state is State.PAUSED


def test_at_low_resumes_once_and_everything_arrives() -> None:
    stream = paused_stream()
    for _ in range(100):
        stream.deliver(1)
    assert stream.kinds() == ["PauseGeneration", "ResumeGeneration"]
    assert stream.sender.state is State.STREAMING
    stream.produce()
    stream.deliver()
    stream.finish()
    assert stream.token_ids == list(range(stream.token))
    assert stream.kinds() == ["PauseGeneration", "ResumeGeneration", "StreamClosed"]
    check_whole_life(stream.commands)


def test_between_low_and_high_it_stays_paused() -> None:
    stream = paused_stream()
    for _ in range(50):
        assert (stream.sender.state is State.PAUSED) == stream.sender.backlog.exceeds(LIMITS.low)
        stream.deliver(1)
    assert stream.sender.state is State.STREAMING


def test_kv_that_was_dropped_does_not_keep_the_stream_from_coming_back() -> None:
    stream = paused_stream()
    assert stream.decide(Action.DROP) == [ReleaseKv()]
    assert stream.sender.state is State.PREEMPTED
    assert stream.sender.next_deadline() == 160.0
    stream.now = 102.0
    stream.produce()
    stream.now = 110.0
    stream.deliver_until(State.STREAMING)
    assert stream.kinds() == ["PauseGeneration", "ReleaseKv", "ResumeGeneration"]
    statistics = stream.sender.statistics(112.0)
    assert (statistics.pauses, statistics.kv_releases, statistics.paused_s, statistics.age_s) == (1, 1, 10.0, 12.0)


def test_text_that_waited_to_be_merged_leaves_when_the_stream_is_paused() -> None:
    stream = Stream(limits(high=Size(bytes=70, tokens=60, frames=12)))
    stream.deliver()
    assert names(stream.produce(times=4)) == ["SendFrame"] * 4
    assert stream.produce() == []
    assert stream.produce() == []
    assert names(stream.produce()) == ["PauseGeneration", "SendFrame"]
    assert stream.sender.statistics(100.0).backlog == Size(bytes=60 + 15 + OVERHEAD, tokens=7, frames=5)


def test_time_paused_is_that_of_all_pauses() -> None:
    stream = paused_stream()
    stream.now = 101.5
    stream.deliver()
    stream.deliver()
    stream.now = 103.0
    stream.produce_until(State.PAUSED)
    assert stream.sender.statistics(104.0).paused_s == 2.5
    assert stream.sender.statistics(104.0).behind_s == 1.0


def test_run_to_completion_never_pauses_but_keeps_the_window() -> None:
    stream = Stream(limits(pausing=False))
    stream.deliver()
    stream.produce(times=500)
    assert stream.kinds() == []
    assert not stream.window.in_flight.exceeds(LIMITS.window)
    stream.finish()
    stream.deliver_until(State.FINISHED)
    assert stream.token_ids == list(range(500))


def test_without_a_signal_it_pauses_only_when_the_window_is_full() -> None:
    stream = Stream(limits(window=Size(bytes=400, tokens=100, frames=100)))
    stream.produce(times=26)
    assert stream.sender.backlog == Size(bytes=390, tokens=26, frames=26)  # above high, and all of it is out
    assert stream.kinds() == []
    assert stream.produce() == [PauseGeneration()]
    assert stream.sender.statistics(100.0).has_signal is False


def test_the_first_record_shows_a_backlog_that_was_not_known() -> None:
    stream = Stream(limits(window=Size(bytes=400, tokens=100, frames=100)))
    stream.produce(times=14)
    assert stream.kinds() == []
    assert stream.report(Record("rpc", 0, 0, 0)) == [PauseGeneration()]


# --- draining ----------------------------------------------------------------------------------------


def test_a_paused_stream_whose_engine_finished_drains_without_resume() -> None:
    stream = paused_stream()
    stream.finish(FinishReason.LENGTH)
    assert stream.sender.state is State.DRAINING
    stream.deliver_until(State.FINISHED)
    assert stream.kinds() == ["PauseGeneration", "StreamClosed"]
    assert stream.token_ids == list(range(stream.token))
    assert stream.frames[-1].finish_reason is FinishReason.LENGTH


def test_close_waits_for_the_return_of_the_last_send() -> None:
    stream = Stream(pump_lags=True)
    stream.produce()
    stream.finish()
    assert stream.return_sends(1) == []
    assert stream.return_sends(1) == [StreamClosed(FinishReason.STOP)]


# --- silence and missing signal ----------------------------------------------------------------------


def test_a_minute_without_progress_ends_the_stream_with_a_word() -> None:
    stream = paused_stream()
    frames = len(stream.frames)
    assert stream.window.in_flight.bytes == 180  # the next frame has 60
    stream.pump_lags = True
    assert stream.at(159.9) == []
    commands = stream.at(160.0)
    assert commands == [
        AbortGeneration(),
        SendFrame(Frame(frames, len(stream.token_ids), (), "", OVERHEAD, FinishReason.STALLED)),
    ]
    assert stream.sender.state is State.DRAINING
    assert stream.sender.next_deadline() is None
    assert stream.at(500.0) == []
    assert stream.return_sends() == []
    assert stream.finish(FinishReason.CANCELLED) == [StreamClosed(FinishReason.STALLED)]


def test_progress_of_either_level_starts_the_minute_anew() -> None:
    stream = paused_stream()
    stream.now = 130.0
    first = stream.frames[0].wire_bytes
    stream.report(Record("rpc", 1, first, 0))  # forwarded, not delivered
    assert stream.sender.statistics(130.0).forwarded.frames == 1
    assert stream.sender.next_deadline() == 190.0
    stream.now = 140.0
    stream.report(Record("rpc", 1, first, 0))
    assert stream.sender.next_deadline() == 190.0
    stream.report(Record("rpc", 1, first, first))
    assert stream.sender.next_deadline() == 200.0


def test_a_slow_engine_is_not_a_silent_reader() -> None:
    stream = Stream()
    stream.produce()
    stream.deliver()
    stream.deliver()
    assert stream.sender.next_deadline() is None


def test_a_draining_stream_that_nobody_reads_is_cut_without_an_abort() -> None:
    stream = paused_stream()
    stream.finish()
    assert stream.sender.next_deadline() == 160.0
    commands = stream.at(160.0)
    assert names(commands) == ["SendFrame", "StreamClosed"]
    assert stream.frames[-1].finish_reason is FinishReason.STALLED


def test_full_window_and_no_signal_for_five_seconds_ends_with_no_signal() -> None:
    stream = Stream()
    stream.produce_until(State.PAUSED)
    assert stream.sender.next_deadline() == 105.0
    commands = stream.at(105.0)
    assert names(commands) == ["AbortGeneration", "SendFrame"]
    assert stream.frames[-1].finish_reason is FinishReason.NO_SIGNAL


def test_without_pausing_a_full_window_without_a_signal_ends_the_same_way() -> None:
    stream = Stream(limits(pausing=False))
    stream.produce(times=40)
    assert stream.sender.next_deadline() == 105.0
    stream.at(105.0)
    assert stream.frames[-1].finish_reason is FinishReason.NO_SIGNAL
    assert stream.sender.statistics(105.0).discarded.tokens == 40 - len(stream.token_ids)


def test_a_signal_that_is_lost_while_paused_counts_from_its_loss() -> None:
    stream = paused_stream()
    stream.now = 110.0
    stream.do(SignalLost())
    assert stream.sender.next_deadline() == 115.0


def test_a_pause_without_a_signal_ends_although_the_window_has_room() -> None:
    stream = paused_stream(high=Size(bytes=100, tokens=60, frames=12))
    assert stream.window.admits(60, 10)
    stream.do(SignalLost())
    stream.at(105.0)
    assert stream.frames[-1].finish_reason is FinishReason.NO_SIGNAL


def test_a_signal_that_comes_back_gives_the_reader_its_minute_again() -> None:
    stream = paused_stream()
    stream.now = 110.0
    stream.do(SignalLost())
    stream.now = 114.0
    stream.report(Record("rpc", 0, 0, 0))
    assert stream.sender.next_deadline() == 174.0


# --- endings from outside ----------------------------------------------------------------------------


def test_a_client_that_leaves_is_cancelled_at_once_and_closed_when_kv_is_back() -> None:
    stream = Stream()
    stream.produce()
    assert stream.do(ClientGone("downstream_remote_disconnect")) == [AbortGeneration(), CloseSilently()]
    assert stream.do(ClientGone("again")) == []
    assert stream.produce() == []
    assert stream.finish(FinishReason.CANCELLED) == [StreamClosed(FinishReason.CANCELLED)]
    statistics = stream.sender.statistics(100.0)
    assert (statistics.cause, statistics.discarded.tokens) == ("downstream_remote_disconnect", 1)
    assert statistics.produced.tokens == 2


def test_a_client_that_leaves_before_the_first_token() -> None:
    stream = Stream()
    assert stream.do(ClientGone("reset")) == [AbortGeneration(), CloseSilently()]
    assert stream.finish(FinishReason.CANCELLED) == [StreamClosed(FinishReason.CANCELLED)]
    assert stream.frames == []


def test_a_client_that_leaves_a_paused_stream_frees_it_without_resume() -> None:
    stream = paused_stream()
    stream.do(ClientGone("reset"))
    stream.finish(FinishReason.CANCELLED)
    assert stream.kinds() == ["PauseGeneration", "AbortGeneration", "CloseSilently", "StreamClosed"]


def test_a_client_that_leaves_while_draining_closes_at_once() -> None:
    stream = paused_stream()
    stream.finish()
    assert stream.do(ClientGone("reset")) == [CloseSilently(), StreamClosed(FinishReason.CANCELLED)]


def test_a_client_that_leaves_after_the_last_frame_went_out_changes_nothing() -> None:
    stream = Stream(pump_lags=True)
    stream.finish()
    assert stream.do(ClientGone("reset")) == []
    assert stream.return_sends() == [StreamClosed(FinishReason.STOP)]


def test_a_failed_send_tries_final_once_and_ends_with_error() -> None:
    stream = Stream(pump_lags=True)
    stream.produce()
    assert stream.do(SendFailed("broken")) == [AbortGeneration(), CloseSilently()]
    assert stream.do(SendFailed("broken")) == []
    assert stream.finish(FinishReason.CANCELLED) == [StreamClosed(FinishReason.ERROR)]
    assert stream.sender.statistics(100.0).cause == "broken"


def test_a_failed_last_send_was_the_one_attempt() -> None:
    stream = Stream(pump_lags=True)
    stream.finish()
    assert stream.do(SendFailed("broken")) == [StreamClosed(FinishReason.STOP)]


def test_shutdown_lets_the_queue_leave_and_names_itself() -> None:
    stream = paused_stream()
    queued = stream.token - len(stream.token_ids)
    assert queued > 0
    assert stream.do(AbortRequested(FinishReason.SHUTDOWN)) == [AbortGeneration()]
    assert stream.do(AbortRequested(FinishReason.ERROR)) == []
    assert stream.sender.next_deadline() == 103.0
    stream.finish(FinishReason.CANCELLED)
    stream.deliver_until(State.FINISHED)
    assert stream.token_ids == list(range(stream.token))
    assert stream.frames[-1].finish_reason is FinishReason.SHUTDOWN


def test_shutdown_of_a_stuck_stream_ends_after_the_drain_time() -> None:
    stream = paused_stream()
    stream.do(AbortRequested(FinishReason.SHUTDOWN))
    stream.do(AbortRequested(FinishReason.ERROR))  # the first reason stands
    stream.finish(FinishReason.CANCELLED)
    assert stream.at(102.9) == []
    assert names(stream.at(103.0)) == ["SendFrame", "StreamClosed"]
    assert stream.frames[-1].finish_reason is FinishReason.SHUTDOWN


def test_shutdown_of_an_answer_that_is_complete_and_still_leaves_keeps_its_own_reason() -> None:
    stream = paused_stream()
    stream.finish(FinishReason.LENGTH)
    stream.do(AbortRequested(FinishReason.SHUTDOWN))
    stream.deliver_until(State.FINISHED)
    assert stream.frames[-1].finish_reason is FinishReason.LENGTH
    assert "AbortGeneration" not in stream.kinds()


def test_shutdown_does_not_make_a_replacement_character_of_half_a_character() -> None:
    stream = Stream()
    stream.produce("漢".encode()[:2])
    stream.do(AbortRequested(FinishReason.SHUTDOWN))
    assert stream.text == ""


def test_a_client_that_leaves_during_shutdown_is_closed_at_once() -> None:
    stream = paused_stream()
    stream.do(AbortRequested(FinishReason.SHUTDOWN))
    assert stream.do(ClientGone("reset")) == [CloseSilently()]
    assert stream.finish(FinishReason.CANCELLED) == [StreamClosed(FinishReason.SHUTDOWN)]


def test_everything_at_once_and_twice_in_any_order() -> None:
    endings: list[Event] = [
        ClientGone("reset"),
        SendFailed("broken"),
        AbortRequested(FinishReason.SHUTDOWN),
        DeadlineReached(),
        SignalLost(),
    ]
    for rotation in range(len(endings)):
        for order in (1, -1):
            stream = paused_stream()
            stream.now = 200.0
            for event in (endings[rotation:] + endings[:rotation])[::order] * 2:
                stream.do(event)
            stream.finish(FinishReason.CANCELLED)
            check_whole_life(stream.commands)
            assert stream.sender.state is State.FINISHED


# --- what cannot happen ------------------------------------------------------------------------------


def stream_in(state: State) -> Stream:
    if state.is_out_of_batch:
        stream = paused_stream()
        if state is not State.PAUSED:
            stream.decide(Action.SWAP if state is State.SWAPPED else Action.DROP)
        return stream
    if state is State.DETACHED:
        stream = Stream(is_resumable=True)
        stream.produce()
        stream.do(ClientGone("reset"))
        return stream
    stream = Stream()
    if state is not State.WAITING:
        stream.produce()
    if state is State.DRAINING:
        stream.pump_lags = True
        stream.finish()
    if state is State.FINISHED:
        stream.finish()
    assert stream.sender.state is state
    return stream


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (State.WAITING, FrameSent(0)),
        (State.STREAMING, FrameSent(1)),
        (State.STREAMING, FrameSent(-1)),
        (State.STREAMING, Progress(2, 0)),
        (State.PAUSED, Progress(0, 1_000)),
        (State.PREEMPTED, FrameSent(1_000)),
        (State.DRAINING, TokensProduced((1,), b"x")),
        (State.DRAINING, EngineFinished(FinishReason.STOP)),
        (State.DRAINING, FrameReplayed(Frame(1, 1, (), "x", 11))),
        (State.STREAMING, FrameReplayed(Frame(2, 1, (), "x", 11))),
        (State.PAUSED, Decided(Decision(action=Action.DETACH, reason="grace"))),
        (State.DETACHED, FrameSent(1)),
    ],
)
def test_an_illegal_event_is_refused_and_changes_nothing(state: State, event: Event) -> None:
    stream = stream_in(state)
    before = stream.sender.statistics(200.0), stream.sender.next_deadline(), stream.window.statistics()
    with pytest.raises(IllegalEventError):
        stream.sender.handle(event, 200.0)
    assert (stream.sender.statistics(200.0), stream.sender.next_deadline(), stream.window.statistics()) == before


@pytest.mark.parametrize(
    "event",
    [TokensProduced((1,), b"x"), EngineFinished(FinishReason.STOP), FrameSent(9), SendFailed("late"), Progress(99, 99),
     SignalLost(), ClientGone("late"), AbortRequested(FinishReason.SHUTDOWN), DeadlineReached(),
     Decided(Decision(action=Action.CANCEL, reason="late")), FrameReplayed(Frame(0, 0, (), "x", 1))],
    ids=lambda event: type(event).__name__,
)  # fmt: skip
def test_after_the_end_everything_is_ignored(event: Event) -> None:
    stream = stream_in(State.FINISHED)
    before = stream.sender.statistics(200.0)
    assert stream.sender.handle(event, 200.0) == ()
    assert stream.sender.statistics(200.0) == before
    assert stream.sender.next_deadline() is None


@pytest.mark.parametrize("state", list(State))
def test_a_deadline_that_is_not_due_does_nothing_in_any_state(state: State) -> None:
    stream = stream_in(state)
    before = stream.sender.statistics(stream.now)
    assert stream.at(stream.now) == []
    assert stream.sender.statistics(stream.now) == before


def test_counters_that_fall_or_repeat_cost_nothing() -> None:
    stream = Stream()
    stream.produce(times=3)
    stream.do(Progress(3, 2))
    stream.do(Progress(1, 0))
    stream.do(FrameSent(0))
    statistics = stream.sender.statistics(100.0)
    assert [size.frames for size in (statistics.sent, statistics.forwarded, statistics.delivered)] == [3, 3, 2]


def test_what_is_delivered_is_forwarded_too() -> None:
    stream = Stream()
    stream.produce(times=3)
    stream.do(Progress(1, 2))
    assert stream.sender.statistics(100.0).forwarded.frames == 2


def test_delivered_may_be_known_before_the_send_returned() -> None:
    stream = Stream(pump_lags=True)
    stream.produce(times=2)
    stream.do(Progress(2, 2))
    assert stream.sender.backlog == Size.ZERO
    stream.return_sends()
    statistics = stream.sender.statistics(100.0)
    assert statistics.sent == statistics.delivered == statistics.produced


def test_limits_that_contradict_themselves_are_refused() -> None:
    window = DeliveryWindow(LIMITS.window)
    with pytest.raises(ValueError, match="low watermark in tokens"):
        BoundedSender("r", limits(low=Size(bytes=0, tokens=61, frames=0)), window, 0.0)
    with pytest.raises(ValueError, match="max_frame_bytes"):
        BoundedSender("r", limits(max_frame_bytes=13), window, 0.0)


# --- several requests on one RPC ---------------------------------------------------------------------


def test_a_stream_blocked_by_its_neighbour_on_the_rpc_is_not_stuck_for_ever() -> None:
    window = DeliveryWindow(LIMITS.window)
    senders = {}
    for request_id in ("a", "b"):
        window.open(request_id)
        senders[request_id] = BoundedSender(request_id, LIMITS, window, 100.0)
    window.observe(Record("rpc", 0, 0, 0))
    for token in range(7):
        senders["a"].handle(TokensProduced((token,), b"w" * 50), 100.0)
    assert senders["a"].state is State.PAUSED
    assert senders["b"].handle(TokensProduced((0,), b"x" * 40), 100.0) == ()
    assert senders["b"].next_deadline() == 160.0
    frames = window.in_flight.frames
    progress = window.observe(Record("rpc", frames, window.in_flight.bytes, window.in_flight.bytes))
    assert names(list(senders["b"].handle(progress["b"], 101.0))) == ["SendFrame"]
