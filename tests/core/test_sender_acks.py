"""A stream whose client acknowledges frames."""

from __future__ import annotations

import pytest

from core.streams import LIMITS, Stream, limits
from sluiceway.core.commands import PauseGeneration, ResumeGeneration
from sluiceway.core.refusal import ControlRefused
from sluiceway.core.states import State


def test_what_was_let_out_and_not_acknowledged_pauses_the_engine() -> None:
    acked, plain = Stream(acks=True), Stream()
    for stream in (acked, plain):
        for _ in range(60):
            stream.produce()
            stream.deliver()
    assert plain.sender.state is State.STREAMING
    assert acked.sender.state is State.PAUSED
    assert PauseGeneration() in acked.commands
    assert acked.sender.statistics(100.0).delivered == plain.sender.statistics(100.0).delivered.__class__(
        bytes=sum(frame.wire_bytes for frame in acked.frames),
        tokens=sum(len(frame.token_ids) for frame in acked.frames),
        frames=len(acked.frames),
    )


def test_acks_alone_carry_a_stream_on_without_any_record() -> None:
    stream = Stream(acks=True)
    for _ in range(200):
        stream.produce()
        stream.acknowledge(len(stream.frames) - 1)
    assert stream.sender.state is State.STREAMING
    assert stream.sender.statistics(100.0).consumed.frames == len(stream.frames)
    assert stream.window.statistics().in_flight.frames == 0
    stream.at(100.0 + LIMITS.signal_timeout_s + 1)
    assert stream.sender.state is State.STREAMING


def test_an_ack_resumes_a_paused_engine() -> None:
    stream = Stream(acks=True)
    while stream.sender.state is not State.PAUSED:
        stream.produce()
        stream.deliver()
    for _ in range(20):
        stream.deliver()
        stream.acknowledge(len(stream.frames) - 1)
    assert ResumeGeneration() in stream.commands
    assert stream.sender.backlog.frames == 0


def test_a_client_that_acknowledges_without_reading_gains_nothing() -> None:
    stream = Stream(acks=True)
    stream.deliver()
    for _ in range(200):
        stream.produce()
        stream.acknowledge(len(stream.frames) - 1)
        if stream.window.statistics().in_flight.bytes >= LIMITS.window.bytes - LIMITS.max_frame_bytes:
            break
    assert stream.let_out == 0
    assert stream.window.in_flight.bytes <= LIMITS.window.bytes
    assert stream.window.in_flight.frames == len(stream.frames)


@pytest.mark.parametrize(
    ("sequence", "complaint"),
    [(3, "frame 3 was never sent; 0 to 2 were"), (-1, "frame -1 was never sent"), (0, "0 goes backwards")],
)
def test_acks_that_cannot_be_true(sequence: int, complaint: str) -> None:
    stream = Stream(acks=True)
    stream.produce(times=3)
    assert len(stream.frames) == 3
    stream.acknowledge(1)
    with pytest.raises(ControlRefused, match=f"ack_frame: {complaint}"):
        stream.sender.frames_acknowledged_by(sequence)
    assert stream.sender.frames_acknowledged_by(1) == 2


def test_before_the_first_frame_no_ack_is_true() -> None:
    with pytest.raises(ControlRefused, match="never sent; none was"):
        Stream(acks=True).sender.frames_acknowledged_by(0)


def test_a_returned_clients_acks_carry_the_streams_own_numbers() -> None:
    stream = Stream(acks=True, first_sequence=7, first_token_index=20, limits=limits())
    stream.produce()
    assert stream.sender.frames_acknowledged_by(7) == 1
    with pytest.raises(ControlRefused, match="frame 6 was never sent; 7 to 7 were"):
        stream.sender.frames_acknowledged_by(6)
