"""SIGTERM straight to tritonserver: open streams end with a reason, and the process leaves in time."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from e2e.inference import infer_request, inference_stub, outputs, wait_for
from sluiceway.cli import health
from sluiceway.cli.stack import Stack, StackSettings

pytestmark = pytest.mark.e2e

CONFIG = {"engine": {"kind": "scripted", "step_s": 0.02}}
ENDS_WITHIN_S = 15.0  # Triton's own exit timeout is 8 s; with a stream open it would be used up


@pytest.fixture
def stack(tmp_path):
    with Stack(StackSettings(run_dir=tmp_path, config=CONFIG)) as running:
        yield running


def regions():
    return {path.name for path in Path("/dev/shm").iterdir()}


def test_sigterm_ends_streams_with_shutdown_and_the_process_in_time(stack):
    pids = stack.pids()
    processes = [psutil.Process(pids[name]) for name in ("tritonserver", "stub", "listener")]
    with inference_stub(stack.ports.envoy) as stub:
        request = infer_request(stream=True, sampling={"max_tokens": 8000}, return_finish_reason=True)
        call = stub.ModelStreamInfer(iter([request]))
        for _ in range(60):  # longer than the backend needs to see that its server is ready
            next(call)
        begin = time.monotonic()
        processes[0].send_signal(signal.SIGTERM)
        reasons = [outputs(response)["finish_reason"] for response in call]
    assert reasons[-1] == "shutdown"
    _, alive = psutil.wait_procs(processes, timeout=ENDS_WITHIN_S)
    assert alive == []
    assert time.monotonic() - begin < ENDS_WITHIN_S


def test_killed_server_leaves_no_stub_no_listener_and_no_shared_memory(stack):
    pids = stack.pids()
    mine = {path for path in regions() if str(stack._shm_prefix) in path}
    processes = [psutil.Process(pids[name]) for name in ("tritonserver", "stub", "listener")]
    processes[0].kill()
    _, alive = psutil.wait_procs(processes, timeout=ENDS_WITHIN_S)
    assert alive == []
    assert mine
    wait_for(lambda: not (mine & regions()), what="the end of the old shared memory")


def test_drain_refuses_and_ends(stack):

    with inference_stub(stack.ports.envoy) as stub:
        request = infer_request(stream=True, sampling={"max_tokens": 8000}, return_finish_reason=True)
        call = stub.ModelStreamInfer(iter([request]))
        next(call)
        health.request(stack.ports.admin, "/drain", method="POST", timeout_s=10)
        assert [outputs(response)["finish_reason"] for response in call][-1] == "shutdown"
        (refusal,) = list(stub.ModelStreamInfer(iter([request])))
    assert refusal.error_message == "the server is shutting down; try again elsewhere"
    statistics = stack.statistics()
    assert statistics["totals"]["draining"]
    assert statistics["engine"]["kv_blocks_free"] == statistics["engine"]["kv_blocks_total"]
