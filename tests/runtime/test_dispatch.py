from __future__ import annotations

from types import SimpleNamespace

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
    SwapOut,
)
from sluiceway.core.events import FinishReason
from sluiceway.runtime.dispatch import Dispatch
from sluiceway.runtime.source import EngineSource

FRAME = Frame(0, 0, (1,), "a", 11)
LAST = Frame(1, 1, (), "", 10, FinishReason.DETACHED)


class Recorder:
    """Engine, outbox and spool in one: writes down who was asked for what."""

    def __init__(self):
        self.calls = []

    def post(self, command):
        command(SimpleNamespace(**{name: self.engine(name) for name in ENGINE_CALLS}))

    def engine(self, name):
        return lambda *args: self.calls.append((name, *args))

    def send(self, stream, frame):
        self.calls.append(("send", frame))

    def close(self, stream):
        self.calls.append(("close",))

    def keep(self, stream, frame):
        self.calls.append(("keep", frame))


ENGINE_CALLS = ("pause", "resume", "release_kv", "swap_out", "set_weight", "abort")


def executed(command, *, resumable=False):
    recorder = Recorder()
    stream = SimpleNamespace(
        source=EngineSource(recorder, "r1"),
        sender=SimpleNamespace(is_resumable=resumable),
        complete=lambda frame: frame,
        is_final_queued=False,
    )
    Dispatch(recorder, recorder.keep).execute(stream, command)
    return recorder.calls, stream.is_final_queued


@pytest.mark.parametrize(
    ("command", "call"),
    [
        (PauseGeneration(), ("pause", "r1")),
        (ResumeGeneration(), ("resume", "r1")),
        (ReleaseKv(), ("release_kv", "r1")),
        (SwapOut(), ("swap_out", "r1")),
        (SetWeight(0.25), ("set_weight", "r1", 0.25)),
        (AbortGeneration(), ("abort", "r1")),
    ],
)
def test_commands_reach_the_streams_own_source(command, call):
    assert executed(command) == ([call], False)


def test_frames_of_a_resumable_stream_are_kept_before_they_are_sent():
    assert executed(SendFrame(FRAME), resumable=True) == ([("keep", FRAME), ("send", FRAME)], False)
    assert executed(SendFrame(FRAME)) == ([("send", FRAME)], False)


def test_a_notice_is_for_its_client_alone():
    assert executed(SendFrame(LAST, is_notice=True), resumable=True) == ([("send", LAST)], True)
    assert executed(SendFrame(LAST), resumable=True) == ([("keep", LAST), ("send", LAST)], True)


def test_spooled_frames_are_kept_and_sent_to_nobody():
    assert executed(SpoolFrame(LAST), resumable=True) == ([("keep", LAST)], False)


def test_a_silent_end_is_an_end():
    assert executed(CloseSilently()) == ([("close",)], True)
