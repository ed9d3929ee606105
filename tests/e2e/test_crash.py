"""kill -9 of any process under load: clients hear of it, the stack comes back, nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from e2e.inference import wait_for
from sluiceway.cli.bench.readers import ConnectionSettings, Never, Normal, ReaderLoop, StreamRequest
from sluiceway.cli.process import is_alive
from sluiceway.cli.stack import Stack, StackSettings

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CONFIG = {"engine": {"kind": "scripted", "step_s": 0.02}}
CLIENTS_HEAR_WITHIN_S = 10.0
BACK_WITHIN_S = 40.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with Stack(StackSettings(run_dir=tmp_path_factory.mktemp("crash"), config=CONFIG)) as running:
        yield running


def open_readers(loop, stack, policy, count, tokens=3000):
    settings = ConnectionSettings(port=stack.ports.envoy)
    requests = [
        StreamRequest(prompt="river", max_tokens=tokens, sampling={"temperature": 0}, client_id=f"load-{n}")
        for n in range(count)
    ]
    return [loop.open(loop.connect(settings), request, policy) for request in requests]


def answers(stack):
    with ReaderLoop() as loop:
        try:
            (stream,) = open_readers(loop, stack, Normal(), 1, tokens=3)
        except OSError:
            return False
        return stream.wait(5) and stream.reading.finish_reason == "length"


@pytest.mark.parametrize("victim", ["stub", "tritonserver", "envoy", "listener"])
def test_killed_process_under_load(stack, victim):
    wait_for(lambda: answers(stack), BACK_WITHIN_S, "the stack before the kill")
    before = stack.pids()
    with ReaderLoop() as loop:
        reading = open_readers(loop, stack, Normal(), 8)
        stuck = open_readers(loop, stack, Never(), 4)
        wait_for(lambda: all(s.reading.arrivals for s in reading), 10, "the load")
        wait_for(lambda: all(s.reading.data_bytes for s in stuck), 10, "the load that nobody reads")

        os.kill(before[victim], signal.SIGKILL)

        if victim == "listener":  # nobody's answer goes through it
            time.sleep(1)
            assert not any(stream.ended for stream in reading)
        else:
            wait_for(lambda: all(s.ended for s in [*reading, *stuck]), CLIENTS_HEAR_WITHIN_S, "an end for every client")
            assert all(stream.reading.error or stream.reading.finish_reason for stream in [*reading, *stuck])
    wait_for(
        lambda: victim in stack.pids() and stack.pids()[victim] != before[victim], BACK_WITHIN_S, f"a new {victim}"
    )
    wait_for(lambda: answers(stack), BACK_WITHIN_S, "an answer after the kill")
    assert not is_running(before[victim])


def test_nothing_is_left_after_a_stop_under_load(tmp_path):
    stack = Stack(StackSettings(run_dir=tmp_path, config=CONFIG))
    stack.start()
    with ReaderLoop() as loop:
        reading = open_readers(loop, stack, Normal(), 8)
        stuck = open_readers(loop, stack, Never(), 4)
        wait_for(lambda: all(s.reading.data_bytes for s in [*reading, *stuck]), 10, "the load")
        processes = [psutil.Process(pid) for pid in stack.pids().values()]
        assert shared_memory(stack)

        stack.stop()

        assert all(stream.wait(5) for stream in reading)
        assert {stream.reading.finish_reason for stream in reading} == {"shutdown"}
    assert not any(is_running(process.pid) for process in processes)
    assert shared_memory(stack) == []


def test_nothing_is_left_after_kill_of_everything(tmp_path):
    stack = Stack(StackSettings(run_dir=tmp_path, config=CONFIG))
    stack.start()
    pids = stack.pids()
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):  # its guard was faster
            os.kill(pid, signal.SIGKILL)
    stack.stop()
    assert not any(is_running(pid) for pid in pids.values())
    assert shared_memory(stack) == []


def is_running(pid):
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def shared_memory(stack):
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(stack._shm_prefix)]
