"""What docs/delivery-signal.md says of Envoy's counters, checked against the real one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from delivery.edge import SETTLED_S, Call, Client, Edge, running_edge
from sluiceway.cli.envoy import EnvoyOverrides
from sluiceway.core.commands import Frame
from sluiceway.core.limits import Size
from sluiceway.core.window import DeliveryWindow

pytestmark = pytest.mark.e2e

HEADER = 9  # of an HTTP/2 DATA frame
REPORT_S = 0.4  # what a record says is at most this old when it comes: flush interval, buffer, two processes


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with running_edge(tmp_path_factory.mktemp("edge")) as running:
        yield running


class TestCounters:
    def test_every_byte_is_accounted_for(self, edge: Edge) -> None:
        """wire = header + bytes let out + 9 per DATA frame, in every settled state."""
        client, call = edge.connect(window=4096)
        time.sleep(SETTLED_S)
        first = edge.last(call.rpc_id)
        assert (first.messages, first.body_bytes, first.wire_bytes) == (0, 0, 0)  # a signal before any answer

        for size in (100, 200, 300):
            call.send(size)
        self.check(edge, client, call, lag=0)
        for _ in range(20):
            call.send(1000)
        self.check(edge, client, call, lag=sum(call.sent) - 4096)
        for _ in range(10):
            client.grant(1)
            time.sleep(0.01)
        self.check(edge, client, call, lag=sum(call.sent) - 4106)
        client.grant(100_000)
        self.check(edge, client, call, lag=0)
        client.close()

    def check(self, edge: Edge, client: Client, call: Call, lag: int) -> None:
        time.sleep(SETTLED_S)
        record = edge.last(call.rpc_id)
        assert record.messages == len(call.sent)
        assert record.body_bytes == sum(call.sent)
        assert record.body_bytes - client.received == lag
        assert record.header_bytes > 0
        assert record.wire_bytes == record.header_bytes + client.received + HEADER * client.data_frames

    def test_a_stream_that_ends_while_its_reader_is_stuck(self, edge: Edge) -> None:
        """Envoy is silent from the upstream's end until the last byte went out; then comes the end record."""
        client, call = edge.connect(window=4096)
        client.half_close()
        for _ in range(10):
            call.send(1000)
        self.check(edge, client, call, lag=sum(call.sent) - 4096)
        call.end()
        time.sleep(SETTLED_S)
        heard = len(edge.records(call.rpc_id))
        client.grant(2000)
        time.sleep(SETTLED_S)
        assert client.received == 6096
        assert len(edge.records(call.rpc_id)) == heard
        client.grant(100_000)
        end = edge.wait_for(call.rpc_id, lambda record: record.ended)
        assert (end.disconnected, end.messages) == (False, 10)
        assert client.received == sum(call.sent)
        assert end.wire_bytes == end.header_bytes + client.received + HEADER * client.data_frames
        client.close()


class Shadow:
    """The ledger of a call, fed with every record; checked against what the client had received by then."""

    def __init__(self, edge: Edge, client: Client, call: Call, booked: Callable[[int], int]) -> None:
        self.edge, self.client, self.call = edge, client, call
        self._booked = booked
        self.window = DeliveryWindow(Size(bytes=1 << 40, tokens=1 << 40, frames=1 << 40))
        self.window.open("a")
        self.checked = 0

    def send(self, payload_bytes: int) -> None:
        wire_bytes = self._booked(payload_bytes + 5)
        self.window.sent("a", Frame(len(self.call.sent), 0, (), "", wire_bytes))
        self.call.send(payload_bytes)

    def check(self) -> None:
        """Each record since the last check. Its moment lies between its arrival and REPORT_S before it."""
        records = self.edge.records(self.call.rpc_id)
        for at, record in records[self.checked :]:
            self.window.observe(record)
            statistics = self.window.statistics()
            let_out_least, let_out_most = self.client.received_at(at - REPORT_S), self.client.received_at(at)
            overhead = HEADER * self.client.data_frames
            assert statistics.forwarded_frames == record.messages
            assert self.window.lag_bytes <= record.body_bytes - let_out_least
            assert self.window.lag_bytes >= record.body_bytes - let_out_most - overhead
            complete = self.complete(let_out_least)
            assert statistics.delivered_frames >= complete, (record, statistics)
            delivered_bytes = sum(self.call.sent[: statistics.delivered_frames])
            assert delivered_bytes <= let_out_most + overhead + max(self.call.sent)
        self.checked = len(records)

    def complete(self, received: int) -> int:
        count = 0
        for size in self.call.sent:
            received -= size
            if received < 0:
                break
            count += 1
        return count


def read_nothing(client: Client) -> None:
    time.sleep(0.05)


def read_slowly(client: Client) -> None:
    client.grant(60)
    time.sleep(0.05)


def dribble(client: Client) -> None:
    """One byte at a time; more than a few updates per DATA frame and Envoy closes the connection."""
    for _ in range(5):
        client.grant(1)
        time.sleep(0.01)


def read_fast(client: Client) -> None:
    client.is_greedy = True
    time.sleep(0.05)


@pytest.mark.parametrize("booked", [lambda size: size, lambda size: 2 * size + 40], ids=["exact", "misbooked"])
@pytest.mark.parametrize("read", [read_nothing, read_slowly, dribble, read_fast])
@pytest.mark.parametrize("window", [4096, 65_535])
def test_the_estimate_stays_in_its_bound(
    edge: Edge, window: int, read: Callable[[Client], None], booked: Callable[[int], int]
) -> None:
    client, call = edge.connect(window)
    shadow = Shadow(edge, client, call, booked)
    for turn in range(40):
        for size in (95, 7, 400 + 37 * turn % 211):
            shadow.send(size)
        if turn == 20:
            shadow.send(min(window, 30_000))  # more than one DATA frame, and more than is left of the window
        read(client)
        shadow.check()
    time.sleep(SETTLED_S)
    shadow.check()
    assert shadow.checked > 5
    statistics = shadow.window.statistics()
    if read is not read_fast and client.received < sum(call.sent):
        assert statistics.in_flight.frames > 0
    if read is read_nothing:  # no DATA frame since it got stuck but those of the window itself: nearly exact
        assert statistics.delivered_frames - shadow.complete(client.received) <= 9 * client.data_frames // 7 + 1

    client.grant(1 << 20)
    time.sleep(SETTLED_S)
    shadow.check()
    assert client.received == sum(call.sent)
    assert shadow.window.in_flight == Size.ZERO
    client.close()


@pytest.mark.parametrize("state", ["queued", "flowing", "stuck"])
@pytest.mark.parametrize("how", ["reset", "close", "rst"])
def test_who_leaves_is_reported(edge: Edge, how: str, state: str) -> None:
    client, call = edge.connect(window=4096)
    if state != "queued":
        for _ in range(10 if state == "stuck" else 1):
            call.send(1000)
        time.sleep(SETTLED_S)
    left_at = time.monotonic()
    {"reset": client.reset, "close": client.close, "rst": client.abort}[how]()
    end = edge.wait_for_end(call.rpc_id)
    assert time.monotonic() - left_at < 0.5
    assert (end.ended, end.disconnected, end.expired) == (True, True, False)
    assert (
        end.detail
        == {
            "reset": "downstream_remote_reset,http2.remote_reset",
            "close": "downstream_connection_termination,downstream_remote_disconnect",
            "rst": "downstream_connection_termination,downstream_remote_disconnect",
        }[how]
    )
    client.close()


def test_a_normal_end_is_no_disconnect(edge: Edge) -> None:
    client, call = edge.connect(window=65_535)
    call.send(100)
    client.half_close()
    call.end()
    end = edge.wait_for_end(call.rpc_id)
    assert (end.ended, end.disconnected, end.detail) == (True, False, "via_upstream")
    client.close()


def test_envoys_own_limits_are_disconnects(tmp_path_factory: pytest.TempPathFactory) -> None:
    overrides = EnvoyOverrides(stream_idle_timeout_s=0.5)
    with running_edge(tmp_path_factory.mktemp("idle"), overrides=overrides) as edge:
        client, call = edge.connect(window=4096)
        end = edge.wait_for_end(call.rpc_id)
        assert end.disconnected
        assert end.detail == "stream_idle_timeout,stream_idle_timeout"
        client.close()


def test_a_silent_peer_is_a_disconnect(tmp_path_factory: pytest.TempPathFactory) -> None:
    overrides = EnvoyOverrides(ping_interval_s=0.5, ping_timeout_s=0.5)
    with running_edge(tmp_path_factory.mktemp("ping"), overrides=overrides) as edge:
        client, call = edge.connect(window=4096)
        with client.silent():
            end = edge.wait_for_end(call.rpc_id)
        assert end.disconnected
        assert "http2_ping_timeout" in end.detail
        client.close()


def test_the_listener_dies_under_load(edge: Edge) -> None:
    """Counters pick up where they were; an end that nobody heard becomes an expiry."""
    staying, leaving = edge.connect(window=65_535), edge.connect(window=65_535)
    for _, call in (staying, leaving):
        call.send(100)
        edge.wait_for(call.rpc_id, lambda record: record.messages == 1)
    restarts = edge.source.statistics(time.monotonic()).listener_restarts

    edge.kill_listener()
    leaving[0].close()
    for _ in range(9):
        staying[1].send(100)
    after = edge.wait_for(staying[1].rpc_id, lambda record: record.messages == 10)
    assert after.body_bytes == 1050
    gone = edge.wait_for_end(leaving[1].rpc_id)
    assert gone.expired
    assert gone.messages == 1
    assert not any(record.expired for _, record in edge.records(staying[1].rpc_id))
    assert edge.source.statistics(time.monotonic()).listener_restarts == restarts + 1
    staying[0].close()
    assert edge.wait_for_end(staying[1].rpc_id).disconnected
