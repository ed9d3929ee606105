"""One stream that is behind, and what the policy decides about it; literal times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.streams import LIMITS, OVERHEAD, Stream, check_whole_life, limits, names
from sluiceway.core.behind import describe
from sluiceway.core.commands import (
    AbortGeneration,
    CloseSilently,
    Frame,
    PauseGeneration,
    ReleaseKv,
    ReplaceGeneration,
    ResumeGeneration,
    SendFrame,
    SetWeight,
    SpoolFrame,
    StreamClosed,
    SwapOut,
)
from sluiceway.core.decision import Action
from sluiceway.core.events import (
    AbortRequested,
    ClientGone,
    EngineFinished,
    FinishReason,
    FrameReplayed,
    SendFailed,
    TokensProduced,
)
from sluiceway.core.limits import CushionLimits, Size
from sluiceway.core.record import Record
from sluiceway.core.states import State


def paused_stream(*, is_resumable: bool = False, **changes: object) -> Stream:
    """Never read; paused at 100.0 with signal; the window is full."""
    stream = Stream(limits(**changes), is_resumable=is_resumable)
    stream.deliver()
    stream.produce_until(State.PAUSED)
    return stream


# --- hold, swap, drop --------------------------------------------------------------------------------


def test_hold_changes_nothing() -> None:
    stream = paused_stream()
    assert stream.decide(Action.HOLD) == []
    assert stream.sender.state is State.PAUSED


@pytest.mark.parametrize(
    ("actions", "commands", "state"),
    [
        ([Action.SWAP], [SwapOut()], State.SWAPPED),
        ([Action.DROP], [ReleaseKv()], State.PREEMPTED),
        ([Action.SWAP, Action.DROP], [SwapOut(), ReleaseKv()], State.PREEMPTED),
        ([Action.SWAP, Action.SWAP], [SwapOut()], State.SWAPPED),
        ([Action.DROP, Action.SWAP, Action.DROP], [ReleaseKv()], State.PREEMPTED),
    ],
)
def test_kv_moves_as_decided_and_the_reader_brings_the_stream_back(
    actions: list[Action], commands: list[object], state: State
) -> None:
    stream = paused_stream()
    done = [command for action in actions for command in stream.decide(action)]
    assert done == commands
    assert stream.sender.state is state
    stream.produce()
    stream.deliver_until(State.STREAMING)
    assert stream.commands[-1] == ResumeGeneration()
    stream.finish()
    stream.deliver_until(State.FINISHED)
    assert stream.token_ids == list(range(stream.token))
    check_whole_life(stream.commands)


@pytest.mark.parametrize("action", [Action.HOLD, Action.SWAP, Action.DROP, Action.RUN_AHEAD, Action.CANCEL])
@pytest.mark.parametrize("finish", [False, True])
def test_a_decision_that_comes_too_late_does_nothing(action: Action, finish: bool) -> None:
    stream = Stream(pump_lags=True)
    stream.produce()
    if finish:
        stream.finish()
    assert stream.decide(action, 1000) == []


def test_cancel_tells_the_client_and_frees_the_engine() -> None:
    stream = paused_stream()
    stream.decide(Action.SWAP)
    stream.pump_lags = True
    sent = len(stream.frames)
    assert stream.decide(Action.CANCEL) == [
        AbortGeneration(),
        SendFrame(Frame(sent, len(stream.token_ids), (), "", OVERHEAD, FinishReason.STALLED)),
    ]
    assert stream.sender.statistics(100.0).cause == "test"


def test_cancel_of_a_complete_answer_that_nobody_reads() -> None:
    stream = paused_stream()
    stream.finish()
    assert stream.sender.is_behind
    assert names(stream.decide(Action.CANCEL)) == ["SendFrame", "StreamClosed"]
    assert stream.frames[-1].finish_reason is FinishReason.STALLED


# --- run ahead ---------------------------------------------------------------------------------------


def test_a_grant_to_run_ahead_lasts_until_the_backlog_is_at_low_again() -> None:
    stream = paused_stream()
    before = stream.sender.backlog.bytes
    assert stream.decide(Action.RUN_AHEAD, 500) == [ResumeGeneration()]
    assert stream.sender.run_ahead_bytes == 500
    stream.produce(times=40)  # more tokens than high allows, and more bytes
    assert stream.sender.backlog.bytes - before == 200
    assert stream.sender.state is State.STREAMING
    while stream.sender.backlog.exceeds(LIMITS.low):
        assert stream.sender.run_ahead_bytes == 500
        stream.deliver(1)
    assert stream.sender.run_ahead_bytes == 0
    stream.produce_until(State.PAUSED)
    assert stream.sender.backlog.bytes <= LIMITS.high.bytes + 60
    check_whole_life(stream.commands)


def test_a_grant_that_is_used_up_pauses_again_and_low_resumes() -> None:
    stream = paused_stream()
    stream.produce(times=20)  # on its way already
    before = stream.sender.backlog.bytes
    stream.decide(Action.RUN_AHEAD, 500)
    stream.produce_until(State.PAUSED)
    assert 0 <= stream.sender.backlog.bytes - (before + 500) <= 5
    assert stream.sender.run_ahead_bytes == 500  # it still holds them
    stream.decide(Action.RUN_AHEAD, 100)
    stream.produce_until(State.PAUSED)
    assert 0 <= stream.sender.backlog.bytes - (before + 600) <= 10
    stream.deliver_until(State.STREAMING)
    assert stream.sender.run_ahead_bytes == 0
    assert [name for name in stream.kinds() if name != "PauseGeneration"] == ["ResumeGeneration"] * 3
    assert stream.token_ids + list(range(len(stream.token_ids), stream.token)) == list(range(stream.token))


@pytest.mark.parametrize("first", [Action.SWAP, Action.DROP])
def test_a_stream_without_kv_may_run_ahead_and_finish(first: Action) -> None:
    stream = paused_stream()
    stream.decide(first)
    stream.decide(Action.RUN_AHEAD, 10_000)
    stream.produce(times=100)
    stream.finish()
    assert stream.sender.is_behind  # complete, and not read
    assert stream.sender.run_ahead_bytes == 10_000
    stream.deliver_until(State.FINISHED)
    assert stream.token_ids == list(range(stream.token))
    assert stream.sender.run_ahead_bytes == 0


def test_time_behind_goes_on_while_running_ahead() -> None:
    stream = paused_stream()
    stream.now = 104.0
    stream.decide(Action.RUN_AHEAD, 10_000)
    stream.produce(times=30)
    stream.now = 106.0
    stream.finish()
    assert stream.sender.statistics(107.0).behind_s == 7.0
    assert stream.sender.statistics(107.0).paused_s == 4.0


# --- detach ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [Action.HOLD, Action.SWAP, Action.DROP])
def test_detach_lets_the_client_go_with_a_word_and_the_rest_goes_to_the_spool(first: Action) -> None:
    stream = paused_stream(is_resumable=True)
    stream.decide(first)
    sent, tokens = len(stream.frames), len(stream.token_ids)
    commands = stream.decide(Action.DETACH)
    notice = Frame(sent, tokens, (), "", OVERHEAD, FinishReason.DETACHED)
    assert commands[:3] == [
        SendFrame(notice, is_notice=True),
        SpoolFrame(replace(notice, finish_reason=None)),
        ResumeGeneration(),
    ]
    assert stream.sender.state is State.DETACHED
    assert stream.sender.next_deadline() is None
    stream.produce(times=200)
    assert "PauseGeneration" not in names(commands) + names(stream.commands[-200:])
    assert stream.do(ClientGone("reset")) == []
    assert stream.finish(FinishReason.LENGTH)[-1] == StreamClosed(FinishReason.DETACHED)
    kept = stream.frames[:sent] + stream.spooled
    assert [frame.sequence for frame in kept] == list(range(len(kept)))
    assert [token for frame in kept for token in frame.token_ids] == list(range(stream.token))
    assert "".join(frame.text for frame in kept) == "word " * stream.token
    assert [frame.finish_reason for frame in kept] == [None] * (len(kept) - 1) + [FinishReason.LENGTH]
    seen = stream.sender.statistics(100.0)
    assert seen.produced == seen.delivered + seen.backlog + seen.spooled
    assert seen.cause == "test"
    check_whole_life(stream.commands)


def test_a_complete_answer_detaches_whole() -> None:
    stream = paused_stream(is_resumable=True)
    stream.finish()
    sent = len(stream.frames)
    assert names(stream.decide(Action.DETACH))[-1] == "StreamClosed"
    assert "ResumeGeneration" not in stream.kinds()
    kept = stream.frames[:sent] + stream.spooled
    assert "".join(frame.text for frame in kept) == "word " * stream.token
    assert kept[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize("event", [ClientGone("reset"), SendFailed("broken")])
@pytest.mark.parametrize("state", [State.WAITING, State.STREAMING, State.PAUSED, State.DRAINING])
def test_a_client_of_a_resumable_stream_that_is_gone_is_not_cancelled(
    event: ClientGone | SendFailed, state: State
) -> None:
    stream = paused_stream(is_resumable=True) if state is State.PAUSED else Stream(is_resumable=True)
    stream.pump_lags = True
    if state in (State.STREAMING, State.DRAINING):
        stream.produce(times=30)
    if state is State.DRAINING:
        stream.finish()
    sent = len(stream.frames)
    commands = stream.do(event)
    assert CloseSilently() in commands
    assert AbortGeneration() not in commands
    if state is not State.DRAINING:
        stream.produce(times=3)
        stream.finish()
    assert stream.sender.state is State.FINISHED
    kept = stream.frames[:sent] + stream.spooled
    assert [token for frame in kept for token in frame.token_ids] == list(range(stream.token))
    assert kept[-1].finish_reason is FinishReason.STOP
    check_whole_life(stream.commands)


def test_a_detached_stream_is_closed_when_its_last_send_returned() -> None:
    stream = paused_stream(is_resumable=True)
    stream.pump_lags = True
    stream.decide(Action.DETACH)
    assert StreamClosed(FinishReason.DETACHED) not in stream.finish()
    assert stream.return_sends() == [StreamClosed(FinishReason.DETACHED)]


def test_a_failed_notice_was_the_one_attempt() -> None:
    stream = paused_stream(is_resumable=True)
    stream.pump_lags = True
    stream.decide(Action.DETACH)
    stream.finish()
    assert stream.do(SendFailed("broken")) == [StreamClosed(FinishReason.DETACHED)]


def test_a_spool_that_is_full_ends_a_detached_stream_with_quota() -> None:
    stream = paused_stream(is_resumable=True)
    stream.decide(Action.DETACH)
    assert stream.do(AbortRequested(FinishReason.QUOTA))[0] == AbortGeneration()
    assert stream.do(AbortRequested(FinishReason.SHUTDOWN)) == []
    stream.produce()  # on its way already
    assert stream.finish(FinishReason.CANCELLED) == [StreamClosed(FinishReason.DETACHED)]
    assert stream.spooled[-1].finish_reason is FinishReason.QUOTA
    check_whole_life(stream.commands)


def test_a_resumable_reader_that_is_silent_too_long_is_let_go_and_not_cut() -> None:
    stream = paused_stream(is_resumable=True)
    commands = stream.at(160.0)
    assert names(commands)[:3] == ["SendFrame", "SpoolFrame", "ResumeGeneration"]
    assert stream.frames[-1].finish_reason is FinishReason.DETACHED
    assert stream.sender.statistics(160.0).cause == "stalled"
    assert AbortGeneration() not in commands


def test_what_does_not_leave_at_shutdown_is_kept() -> None:
    stream = paused_stream(is_resumable=True)
    stream.do(AbortRequested(FinishReason.SHUTDOWN))
    stream.finish(FinishReason.CANCELLED)
    sent = len(stream.frames)
    stream.at(103.0)
    assert stream.frames[-1].finish_reason is FinishReason.SHUTDOWN
    assert stream.spooled[-1].finish_reason is FinishReason.SHUTDOWN
    assert "".join(frame.text for frame in stream.frames[:sent] + stream.spooled) == "word " * stream.token


def test_nobody_waits_for_a_detached_stream() -> None:
    stream = Stream(is_resumable=True)
    stream.produce()
    assert stream.do(ClientGone("reset")) == [CloseSilently(), SetWeight(1 / 16)]


# --- weight ------------------------------------------------------------------------------------------


def stuck_stream(**changes: object) -> Stream:
    """Paused at 101.0: nothing was taken for a second, far below the high watermark."""
    stream = Stream(
        limits(high=Size(bytes=9_000, tokens=900, frames=900), low=Size(bytes=8_000, tokens=800, frames=800), **changes)
    )
    stream.deliver()
    stream.produce(times=16)
    assert stream.sender.state is State.STREAMING
    stream.now = 101.0
    assert PauseGeneration() in stream.produce()
    return stream


def test_a_reader_that_takes_nothing_is_paused_before_the_watermark() -> None:
    stream = stuck_stream()
    assert stream.at(103.0) == []
    assert ResumeGeneration() not in stream.deliver(1), "at a token in 3 s the rest lasts for long"
    stream.deliver_until(State.STREAMING)
    assert 0 < stream.sender.backlog.tokens < 16


def test_few_tokens_unread_are_no_reason_to_pause() -> None:
    stream = Stream(limits(cushion=CushionLimits(min_tokens=16)))
    stream.deliver()
    stream.produce(times=10)
    stream.now = 120.0
    stream.produce(times=5)
    assert stream.sender.state is State.STREAMING


def test_without_a_signal_silence_says_nothing() -> None:
    stream = Stream(limits(high=Size(bytes=9_000, tokens=900, frames=900)))
    stream.produce(times=16)
    stream.now = 102.0
    stream.produce()
    assert stream.sender.state is State.STREAMING


@pytest.mark.parametrize("changes", [{"cushion": None}, {"pausing": False}])
def test_a_cushion_can_be_left_out(changes: dict[str, object]) -> None:
    stream = Stream(limits(high=Size(bytes=9_000, tokens=900, frames=900), **changes))
    stream.deliver()
    stream.produce(times=16)
    stream.now = 110.0
    stream.produce()
    assert stream.sender.state is State.STREAMING


def test_a_grant_to_one_that_is_paused_below_the_low_watermark_lasts_until_it_is_used() -> None:
    stream = stuck_stream()
    assert ResumeGeneration() in stream.decide(Action.RUN_AHEAD, run_ahead_bytes=300)
    stream.produce(times=100)
    assert stream.sender.state is State.STREAMING, "it takes nothing, and that is known"
    while stream.sender.backlog.bytes <= 9_000 + 300:
        stream.produce(b"word " * 10)
    assert stream.sender.state is State.PAUSED


def test_a_reader_with_plenty_unread_loses_weight_and_gets_it_back() -> None:
    stream = Stream(limits(high=Size(bytes=9_000, tokens=900, frames=900), cushion=None))
    stream.deliver()
    stream.produce(times=30)
    assert SetWeight(1 / 16) not in stream.commands
    stream.now = 101.5
    assert stream.produce() == [SetWeight(1 / 16)]
    assert stream.sender.statistics(101.5).weight == 1 / 16
    while stream.sender.backlog.tokens:
        stream.deliver()
    assert [command for command in stream.commands if isinstance(command, SetWeight)][-1] == SetWeight(1.0)


def test_a_reader_that_keeps_up_never_loses_weight() -> None:
    stream = Stream()
    for _ in range(300):
        stream.now += 0.05
        stream.produce()
        stream.deliver()
    assert not any(isinstance(command, SetWeight) for command in stream.commands)


# --- a stream that goes on elsewhere -----------------------------------------------------------------


def replay(stream: Stream, *frames: Frame) -> None:
    for frame in frames:
        stream.do(FrameReplayed(frame))


def test_replayed_frames_go_out_as_they_were_under_their_own_numbers() -> None:
    stream = Stream(first_sequence=5, first_token_index=9)
    stream.deliver()
    before = [
        Frame(5, 9, (9,), "a", 99),
        Frame(6, 10, (), "", 99),
        Frame(7, 10, (10, 11), "x" * 70, 99),  # larger than a frame of this request may be
        *(Frame(n, 4 + n, (4 + n,), "b", 99) for n in range(8, 40)),
        Frame(40, 44, (44,), "c", 99, FinishReason.LENGTH),
    ]
    replay(stream, *before)
    assert stream.sender.state is State.DRAINING
    stream.deliver_until(State.FINISHED)
    assert stream.frames == [replace(frame, wire_bytes=len(frame.text) + OVERHEAD) for frame in before]
    assert not stream.window.in_flight.exceeds(LIMITS.window)
    check_whole_life(stream.commands)


def test_a_replay_pauses_and_resumes_its_source() -> None:
    stream = Stream(first_sequence=2)
    stream.deliver()
    number = 2
    while stream.sender.state is not State.PAUSED:
        replay(stream, Frame(number, number, (number,), "word ", 99))
        number += 1
    stream.deliver_until(State.STREAMING)
    assert stream.kinds() == ["PauseGeneration", "ResumeGeneration"]


def test_a_client_that_came_back_and_falls_silent_again_may_come_once_more() -> None:
    stream = Stream(first_sequence=2)
    stream.deliver()
    replay(stream, *(Frame(n, n, (n,), "word ", 99) for n in range(2, 30)))
    stream.at(160.0)
    assert stream.frames[-1].finish_reason is FinishReason.DETACHED
    assert stream.sender.statistics(160.0).cause == "stalled"
    assert stream.do(EngineFinished(FinishReason.CANCELLED)) == [StreamClosed(FinishReason.DETACHED)]


def test_replayed_frames_after_the_end_are_dropped_and_counted() -> None:
    stream = Stream()
    replay(stream, Frame(0, 0, (0,), "a", 99))
    stream.do(AbortRequested(FinishReason.SHUTDOWN))
    replay(stream, Frame(1, 1, (1,), "b", 99))
    assert stream.text == "a"
    assert stream.sender.statistics(100.0).discarded == Size(bytes=1, tokens=1, frames=0)


# --- degraded ----------------------------------------------------------------------------------------


def silent_stream() -> Stream:
    return paused_stream(degrade_after_s=20.0)


@pytest.mark.parametrize("first", [Action.HOLD, Action.SWAP, Action.DROP])
def test_a_silent_reader_gets_a_short_answer_in_place_of_the_rest(first: Action) -> None:
    stream = silent_stream()
    stream.produce("漢".encode()[:2])
    stream.decide(first)
    sent = len(stream.frames)
    assert stream.at(119.9) == []
    assert stream.at(120.0) == [ReplaceGeneration(), SetWeight(1 / 16)]
    assert stream.sender.state is State.STREAMING
    for token in range(3):
        stream.do(TokensProduced((token,), b"short "))
    assert len(stream.frames) == sent  # the window is still full
    stream.do(EngineFinished(FinishReason.LENGTH))
    stream.deliver_until(State.FINISHED)
    answer = stream.frames[sent:]
    assert [frame.sequence for frame in stream.frames] == list(range(len(stream.frames)))
    assert answer[0].first_token_index == 0
    assert [token for frame in answer for token in frame.token_ids] == [0, 1, 2]
    assert "".join(frame.text for frame in answer) == "short short short "
    assert answer[-1].finish_reason is FinishReason.DEGRADED
    assert stream.sender.statistics(120.0).is_degraded
    check_whole_life(stream.commands)


def test_a_degraded_answer_is_not_paused_and_not_replaced_again() -> None:
    stream = silent_stream()
    stream.at(120.0)
    stream.produce(times=80)
    assert stream.kinds() == ["PauseGeneration", "ReplaceGeneration"]
    assert stream.sender.next_deadline() == 160.0
    stream.at(160.0)
    assert stream.frames[-1].finish_reason is FinishReason.STALLED


def test_a_degraded_answer_that_fails_says_error() -> None:
    stream = silent_stream()
    stream.at(120.0)
    stream.do(EngineFinished(FinishReason.ERROR))
    stream.deliver_until(State.FINISHED)
    assert stream.frames[-1].finish_reason is FinishReason.ERROR


def test_progress_of_the_reader_puts_the_degraded_answer_off() -> None:
    stream = silent_stream()
    stream.now = 115.0
    stream.deliver(1)
    assert stream.sender.next_deadline() == 135.0


def test_resumable_streams_are_not_degraded() -> None:
    stream = paused_stream(is_resumable=True, degrade_after_s=20.0)
    assert stream.sender.next_deadline() == 160.0


# --- run to completion, and what the policy is told --------------------------------------------------


def test_run_to_completion_pauses_at_the_bound_of_its_backlog() -> None:
    bounded = limits(pausing=False, max_backlog_bytes=2_000)
    stream = Stream(bounded)
    stream.deliver()
    stream.produce_until(State.PAUSED)
    assert 0 <= stream.sender.backlog.bytes - 2_000 <= 5
    assert bounded.max_stream_bytes == 200 + 2_000 + 120
    while stream.sender.state is State.PAUSED:
        stream.deliver(1)
    assert 900 <= stream.sender.backlog.bytes <= 1_000
    assert stream.kinds() == ["PauseGeneration", "ResumeGeneration"]


def test_a_stream_that_is_not_behind_is_not_described() -> None:
    stream = Stream()
    stream.produce()
    assert describe(stream.sender, LIMITS, 100.0, prompt_tokens=1, max_tokens=9, kv_block_tokens=16) is None
    stream.finish()
    assert not stream.sender.is_behind


@pytest.mark.parametrize(("action", "device", "host"), [(Action.HOLD, 5, 0), (Action.SWAP, 0, 5), (Action.DROP, 0, 0)])
def test_what_the_policy_is_told(action: Action, device: int, host: int) -> None:
    stream = paused_stream(is_resumable=True)
    stream.decide(action)
    stream.now = 110.0
    first = stream.frames[0].wire_bytes
    stream.report(Record("rpc", 1, first, first))
    stream.now = 115.0
    seen = describe(
        stream.sender, stream.limits, 115.0, prompt_tokens=20, max_tokens=100, kv_block_tokens=16, tenant="t", tier=2
    )
    assert seen is not None
    backlog = stream.sender.backlog
    assert (seen.kv_tokens, seen.tokens_left) == (20 + stream.token, 100 - stream.token)
    assert (seen.kv_blocks, seen.host_blocks) == (device, host)
    assert (seen.behind_s, seen.silence_s) == (15.0, 5.0)
    assert seen.drain_bytes_per_s == pytest.approx(first / 15.0)
    # Tokens are furthest from low here: of 44 or so, 10 may stay.
    assert seen.resume_bytes >= backlog.bytes - LIMITS.low.bytes
    assert seen.spool_bytes_left == 5 * seen.tokens_left  # "word "
    assert (seen.is_resumable, seen.tenant, seen.tier) == (True, "t", 2)
    assert seen.backlog == backlog


def test_streams_without_kv_are_told_as_such() -> None:
    stream = paused_stream()
    seen = describe(stream.sender, stream.limits, 100.0, prompt_tokens=20, max_tokens=100, kv_block_tokens=0)
    assert seen is not None
    assert (seen.kv_blocks, seen.kv_tokens) == (0, 0)


def test_a_complete_answer_that_waits_is_told_with_nothing_left() -> None:
    stream = paused_stream()
    stream.finish()
    seen = describe(stream.sender, stream.limits, 100.0, prompt_tokens=20, max_tokens=100, kv_block_tokens=16)
    assert seen is not None
    assert (seen.state, seen.tokens_left, seen.kv_blocks) == (State.DRAINING, 0, 0)
