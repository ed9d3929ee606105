"""The source with a real listener process, without Envoy: this test speaks the access log protocol itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from delivery.edge import wait_until_open
from delivery.envoy_client import EnvoyClient
from sluiceway.cli.ports import Ports
from sluiceway.core.record import Record
from sluiceway.delivery.source import DeliverySource, ListenerError, find_python

PATIENCE_S = 20.0


class Inbox:
    """``hold`` makes the callback wait, as a parent that is slow."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._grown = threading.Condition()

    def put(self, records: list[Record]) -> None:
        self.may_go_on.wait()
        with self._grown:
            self.records += records
            self._grown.notify_all()

    def wait(self, wanted: Callable[[Record], bool]) -> Record:
        with self._grown:
            assert self._grown.wait_for(lambda: any(map(wanted, self.records)), PATIENCE_S), self.records
            return next(filter(wanted, self.records))


@contextmanager
def running(record_timeout_s: float = 60.0) -> Iterator[tuple[DeliverySource, Inbox, str]]:
    inbox = Inbox()
    listen = f"127.0.0.1:{Ports.free().als}"
    source = DeliverySource(listen, record_timeout_s, inbox.put, sys.executable)
    source.start()
    try:
        yield source, inbox, listen
    finally:
        inbox.may_go_on.set()
        source.stop()


def test_changes_and_ends_come_through() -> None:
    with running() as (source, inbox, listen), EnvoyClient(listen) as envoy:
        envoy.report({"a": 1, "b": 1})
        inbox.wait(lambda record: record.rpc_id == "b")
        envoy.report({"a": 1, "b": 2})
        inbox.wait(lambda record: record.messages == 2)
        envoy.report({}, ends={"a": 1})
        inbox.wait(lambda record: record.ended)
        assert [(each.rpc_id, each.messages) for each in inbox.records] == [("a", 1), ("b", 1), ("b", 2), ("a", 1)]
        statistics = source.statistics(time.monotonic())
        assert (statistics.records, statistics.changes, statistics.ended, statistics.expired) == (5, 4, 1, 0)
        assert statistics.last_record_age_s is not None


def test_silence_expires() -> None:
    with running(record_timeout_s=0.4) as (_, inbox, listen), EnvoyClient(listen) as envoy:
        envoy.report({"a": 5})
        assert inbox.wait(lambda record: record.expired).messages == 5


def test_a_slow_parent_gets_the_latest_and_every_end() -> None:
    """20,000 changes while the parent does not read: what waits is one record per RPC, not a queue of changes."""
    rpcs = [f"{number:036}" for number in range(2000)]
    with running() as (source, inbox, listen), EnvoyClient(listen) as envoy:
        envoy.report({"first": 1})
        inbox.wait(lambda record: record.rpc_id == "first")
        inbox.may_go_on.clear()
        for messages in range(1, 11):
            envoy.report(dict.fromkeys(rpcs, messages))
        envoy.report({}, ends=dict.fromkeys(rpcs[:1000], 11))
        envoy.finish()  # the listener took it all in
        inbox.may_go_on.set()
        inbox.wait(lambda record: record.rpc_id == rpcs[999] and record.ended)
        inbox.wait(lambda record: record.rpc_id == rpcs[1999] and record.messages == 10)
        latest = {each.rpc_id: each for each in inbox.records}
        assert all(latest[each].ended for each in rpcs[:1000])
        assert all(latest[each].messages == 10 for each in rpcs[1000:])
        assert source.statistics(time.monotonic()).changes < 15_000


def test_a_killed_listener_comes_back_and_the_missing_expire() -> None:
    with running(record_timeout_s=1.0) as (source, inbox, listen):
        with EnvoyClient(listen) as envoy:
            envoy.report({"stays": 1, "leaves": 1})
            inbox.wait(lambda record: record.rpc_id == "leaves")
            pid = source.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        wait_until_open(int(listen.rpartition(":")[2]))
        time.sleep(1.2)  # longer than record_timeout_s, as a client's backoff may be
        with EnvoyClient(listen) as envoy, envoy.reporting({"stays": 1}):
            gone = inbox.wait(lambda record: record.expired)
        assert gone.rpc_id == "leaves"
        assert not any(record.expired and record.rpc_id == "stays" for record in inbox.records)
        statistics = source.statistics(time.monotonic())
        assert (statistics.listener_restarts, statistics.expired) == (1, 1)
        assert source.pid != pid


def test_a_taken_port_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        source = DeliverySource(listen, 3.0, lambda records: None, sys.executable)
        with pytest.raises(ListenerError, match=rf"delivery\.listen: .*{listen}: the port is taken"):
            source.start()
    assert source.pid is None
    assert f"cannot listen on {listen}" in capfd.readouterr().err


def test_two_listeners_never_share_a_port() -> None:
    with running() as (_, _, listen), pytest.raises(ListenerError, match=listen):
        DeliverySource(listen, 3.0, lambda records: None, sys.executable).start()


def test_stop_leaves_no_process() -> None:
    with running() as (source, _, _):
        pid = source.pid
        assert pid is not None
    assert not psutil.pid_exists(pid)


def test_the_listener_ends_with_its_parent() -> None:
    """Even when the parent is killed: its end of the pipe closes."""
    script = (
        "import sys, time; from sluiceway.delivery.source import DeliverySource\n"
        f"source = DeliverySource('127.0.0.1:{Ports.free().als}', 3.0, lambda records: None, sys.executable)\n"
        "source.start(); print(source.pid, flush=True); time.sleep(60)\n"
    )
    package_root = str(Path(sys.modules["sluiceway"].__path__[0]).parent)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": package_root}
    ) as parent:
        assert parent.stdout is not None
        listener = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([listener], timeout=PATIENCE_S)
    assert not listener.is_running() or listener.status() == psutil.STATUS_ZOMBIE


class TestFindPython:
    def test_this_interpreter(self) -> None:
        assert find_python() == sys.executable

    def test_in_a_stub_the_virtual_environments(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        python = tmp_path / "bin" / "python3"
        python.parent.mkdir()
        python.symlink_to(sys.executable)
        monkeypatch.setattr(sys, "executable", "/opt/triton_python_backend_stub")
        monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
        assert find_python() == str(python)

    def test_none(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("prefix", "exec_prefix"):
            monkeypatch.setattr(sys, name, str(tmp_path))
        monkeypatch.setattr(sys, "executable", "")
        monkeypatch.delenv("VIRTUAL_ENV", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ListenerError, match="VIRTUAL_ENV"):
            find_python()


def test_bad_timeouts_are_refused() -> None:
    for value in ("0", "-1", "nan", "inf"):
        command = [find_python(), "-m", "sluiceway.delivery.listener", "--listen", "127.0.0.1:0"]
        done = subprocess.run(
            [*command, f"--record-timeout-s={value}"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(sys.modules["sluiceway"].__path__[0]).parent)},
        )
        assert done.returncode == 2
        assert "--record-timeout-s" in done.stderr
