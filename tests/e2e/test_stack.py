"""The stack itself, with a trivial model: it starts, comes back, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import psutil
import pytest
import yaml
from tritonclient.grpc import service_pb2, service_pb2_grpc

from e2e.inference import wait_for
from sluiceway.cli import setup, shm
from sluiceway.cli.ports import LOOPBACK, Ports, PortTakenError, option_name
from sluiceway.cli.process import is_alive
from sluiceway.cli.stack import Stack, StackError, StackSettings

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

REPOSITORY = Path(__file__).parents[1] / "cli" / "model_repository"
BACK_WITHIN_S = 30.0


def settings(run_dir, **changes):
    return StackSettings(**{"run_dir": run_dir, "model_repository": REPOSITORY, "with_backend_admin": False, **changes})


def request(words):
    message = service_pb2.ModelInferRequest(model_name="llm")
    tensor = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(str(words).encode())
    return message


def stream(port, words, timeout_s=10):
    """The number of messages of one answer."""
    with grpc.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(
            iter([request(words)]), timeout=timeout_s
        )
        return sum(1 for _ in call)


def answers(port):
    try:
        return stream(port, 3, timeout_s=3) == 3
    except grpc.RpcError:
        return False


def running(pids):
    return [pid for pid in pids if psutil.pid_exists(pid) and is_alive(psutil.Process(pid))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with Stack(settings(tmp_path_factory.mktemp("plain"))) as stack:
        yield stack


def test_answers_through_envoy(plain):
    assert stream(plain.ports.envoy, 4) == 4
    assert set(plain.pids()) == {"tritonserver", "stub", "envoy"}
    assert all(size > 1_000_000 for size in plain.rss_bytes().values())


def test_envoy_replaces_a_clients_request_id(plain):
    with grpc.insecure_channel(f"{LOOPBACK}:{plain.ports.envoy}") as channel:
        unary = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
        _, call = unary.with_call(b"", metadata=[("x-request-id", "mine")], timeout=5)
    (ours,) = (value for key, value in call.initial_metadata() if key == "x-request-id")
    assert ours != "mine"


@pytest.mark.parametrize(
    "method", ["RepositoryModelLoad", "RepositoryModelUnload", "SystemSharedMemoryRegister", "LogSettings"]
)
def test_envoy_keeps_clients_from_tritons_controls(plain, method):
    with grpc.insecure_channel(f"{LOOPBACK}:{plain.ports.envoy}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(b"", timeout=5)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("victim", ["stub", "tritonserver", "envoy"])
def test_killed_process_comes_back(plain, victim):
    before = plain.pids()
    os.kill(before[victim], signal.SIGKILL)
    wait_for(lambda: plain.pids().get(victim, before[victim]) != before[victim], BACK_WITHIN_S, f"a new {victim}")
    wait_for(lambda: answers(plain.ports.envoy), BACK_WITHIN_S, "an answer")
    assert running([before[victim]]) == []
    assert len(shm.regions(shm.own_prefix())) == 1  # the dead one's region is gone


def test_stop_under_load_is_bounded_and_leaves_nothing(tmp_path):
    stack = Stack(settings(tmp_path))
    stack.start()
    pids = stack.pids().values()
    ended = threading.Event()

    def endless():
        with pytest.raises(grpc.RpcError):
            stream(stack.ports.envoy, 1_000_000, timeout_s=60)
        ended.set()

    client = threading.Thread(target=endless)
    client.start()
    idle = grpc.insecure_channel(f"{LOOPBACK}:{stack.ports.triton_grpc}")
    grpc.channel_ready_future(idle).result(5)
    started = time.monotonic()
    stack.stop()
    took = time.monotonic() - started
    idle.close()
    client.join(10)
    assert took < 20
    assert ended.is_set()
    assert running(pids) == []
    assert shm.regions(stack._shm_prefix) == []
    stack.stop()  # harmless


def test_kill_of_the_supervisor_takes_everything_with_it(tmp_path):
    program = (
        "import json, sys, time; from pathlib import Path; from sluiceway.cli.stack import Stack, StackSettings\n"
        f"stack = Stack(StackSettings(run_dir=Path({str(tmp_path)!r}), model_repository=Path({str(REPOSITORY)!r}), "
        "with_backend_admin=False))\n"
        "stack.start(); print(json.dumps(list(stack.pids().values())), flush=True); time.sleep(60)"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    with supervisor.stdout:
        pids = [int(pid) for pid in supervisor.stdout.readline().strip("[]\n").split(",")]
        assert len(running(pids)) == 3
        supervisor.kill()
        supervisor.wait()
    wait_for(lambda: not running(pids), 10, "the end of its servers")
    wait_for(lambda: not shm.regions(shm.prefix(supervisor.pid)), 10, "the end of its regions")


def test_taken_port_starts_nothing(tmp_path):
    ports = Ports.free()
    with socket.socket() as listener:
        listener.bind((LOOPBACK, ports.envoy))
        listener.listen()
        with pytest.raises(PortTakenError, match=f"{ports.envoy} .*--envoy-port"):
            Stack(settings(tmp_path, ports=ports)).start()
    assert not (tmp_path / "logs").exists()


def test_model_that_cannot_load_says_why_and_leaves_nothing(tmp_path):
    repository = tmp_path / "repository"
    (repository / "llm" / "1").mkdir(parents=True)
    (repository / "llm" / "config.pbtxt").write_text((REPOSITORY / "llm" / "config.pbtxt").read_text())
    (repository / "llm" / "1" / "model.py").write_text("raise ValueError('weights of clay')")
    stack = Stack(settings(tmp_path / "run", model_repository=repository))
    with pytest.raises(StackError, match=r"(?s)tritonserver ended with status 1.*weights of clay"):
        stack.start()
    assert stack.pids() == {}
    assert shm.regions(stack._shm_prefix) == []


def sluiceway(*arguments, **options):
    command = [sys.executable, "-m", "sluiceway.cli.app", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **options)


def test_up_status_down(tmp_path):
    """With the real model's shell and the scripted engine's settings in its own repository copy."""
    ports = Ports.free()
    options = [part for name in Ports.__slots__ for part in (option_name(name), str(getattr(ports, name)))]
    place = ["--run-dir", str(tmp_path / "up")]
    environment = {**os.environ, "SLUICEWAY_MODEL_REPOSITORY": str(scripted_repository(tmp_path))}
    try:
        up = sluiceway("up", *place, *options, env=environment)
        assert up.returncode == 0, up.stderr
        again = sluiceway("up", *place, *options, env=environment)
        assert again.returncode == 2
        assert "already runs" in again.stderr
        status = sluiceway("status", *place)
        assert status.returncode == 0, status.stdout
        assert "tritonserver" in status.stdout
    finally:
        down = sluiceway("down", *place)
    assert down.returncode == 0
    assert sluiceway("status", *place).returncode == 1
    ports.require_free()


def scripted_repository(tmp_path):
    copy = tmp_path / "model_repository"
    shutil.copytree(setup.REPOSITORY / "model_repository", copy)
    path = copy / "llm" / "sluiceway.yaml"
    content = yaml.safe_load(path.read_text())
    content["engine"]["kind"] = "scripted"
    path.write_text(yaml.safe_dump(content))
    return copy
