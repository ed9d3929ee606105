"""SIGTERM straight to tritonserver, as people run it without our supervisor."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from sluiceway.cli.bench.readers import ConnectionSettings, ReaderLoop, StreamRequest
from sluiceway.cli.process import is_alive
from sluiceway.cli.stack import Stack, StackSettings

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EXIT_TIMEOUT_S = 8  # --exit-timeout-secs of the stack
NOTICED_WITHIN_S = 4  # the stub asks every 0.5 s, three times, and drains for up to 2 s


@pytest.mark.parametrize("half_close", [True, False], ids=["half-closed", "send side open"])
def test_streams_end_with_a_reason_and_nothing_is_left(tmp_path, half_close):
    """A client that keeps its send side open holds Triton 24.10 up for ever: the stub has to end that."""
    config = {"engine": {"kind": "scripted", "step_s": 0.02}}
    with Stack(StackSettings(run_dir=tmp_path, config=config)) as stack, ReaderLoop() as loop:
        request = StreamRequest(prompt="river", max_tokens=60_000, sampling={"temperature": 0})
        loop.connect(ConnectionSettings(port=stack.ports.triton_grpc))  # idle
        stream = loop.open(loop.connect(ConnectionSettings(port=stack.ports.envoy)), request, half_close=half_close)
        deadline = time.monotonic() + 10
        while not stream.reading.text and time.monotonic() < deadline:
            time.sleep(0.05)
        pids = stack.pids()
        servers = [psutil.Process(pids[name]) for name in ("tritonserver", "stub", "listener")]
        regions = set(Path("/dev/shm").glob(f"{stack._shm_prefix}*"))
        os.kill(pids["tritonserver"], signal.SIGTERM)
        started = time.monotonic()
        while any(is_alive(server) for server in servers):
            assert time.monotonic() - started < EXIT_TIMEOUT_S + NOTICED_WITHIN_S + 3, "still there"
            time.sleep(0.05)
        assert stream.reading.finish_reason == "shutdown"
    assert regions
    assert not [region for region in regions if region.exists()]
