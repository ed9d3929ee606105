"""The clients against a real HTTP/2 server: what they leave in its window is what they say they read."""

from __future__ import annotations

import pytest
from token_server import TEXT, TokenServer

from sluiceway.cli.bench.readers import (
    NO_BDP_PROBE,
    Alternate,
    Bursts,
    ClientPlan,
    ConnectionSettings,
    GrpcReader,
    Leave,
    Never,
    Normal,
    Rate,
    ReaderLoop,
    ReaderProcess,
    StreamRequest,
)


@pytest.fixture
def server():
    with TokenServer() as server:
        yield server


@pytest.fixture
def loop():
    with ReaderLoop() as loop:
        yield loop


def start(server, loop, policy, *, tokens=100, half_close=True, **settings):
    connection = loop.connect(ConnectionSettings(port=server.port, **settings))
    request = StreamRequest(prompt="x", max_tokens=tokens, client_id="c")
    return loop.open(connection, request, policy, half_close=half_close)


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        (Normal(), {}),
        (Normal(), {"stream_window": 1024}),
        (Normal(), {"recv_bytes": 1}),
        (Rate(200_000), {"stream_window": 1024}),
        (Bursts(4096), {"stream_window": 4096, "receive_buffer": 4096}),
        (Alternate(0.01, 0.02), {"stream_window": 1024}),
    ],
)
def test_every_reader_that_reads_gets_the_whole_answer(server, loop, policy, settings):
    stream = start(server, loop, policy, **settings)
    assert stream.wait(20)
    reading = stream.reading
    assert reading.text == TEXT * 100
    assert reading.token_ids == list(range(100))
    assert reading.frames == [(index, index) for index in range(100)]
    assert (reading.finish_reason, reading.grpc_status, reading.error) == ("length", 0, "")
    assert reading.rpc_id == "rpc-1"
    assert len(reading.gaps_s()) == 99
    assert reading.opened_at <= reading.headers_at <= reading.arrivals[0] <= reading.closed_at


def test_a_never_reader_takes_its_window_and_not_a_byte_more(server, loop):
    stream = start(server, loop, Never(), stream_window=4096)
    assert not stream.wait(0.5)
    assert stream.reading.data_bytes == 4096
    assert stream.reading.acknowledged_bytes == 0
    loop.set_policy(stream, Normal())
    assert stream.wait(20)
    assert stream.reading.finish_reason == ""  # what went by undecoded stays undecoded


def test_stuck_streams_do_not_block_a_neighbour_on_their_connection(server, loop):
    connection = loop.connect(ConnectionSettings(port=server.port, stream_window=4096, connection_window=1 << 20))
    request = StreamRequest(prompt="x", max_tokens=1000)
    stuck = [loop.open(connection, request, Never()) for _ in range(10)]
    reader = loop.open(connection, request, Normal())
    assert reader.wait(20)
    assert len(reader.reading.arrivals) == 1000
    assert all(each.reading.data_bytes <= 4096 for each in stuck)


@pytest.mark.parametrize("how", [Leave.RST_STREAM, Leave.FIN, Leave.TCP_RST, Leave.SHUTDOWN_WR])
def test_the_server_notices_every_way_of_leaving(server, loop, how):
    stream = start(server, loop, Never(), tokens=10_000, stream_window=4096)
    assert not stream.wait(0.3)
    before = stream.reading.opened_at
    assert loop.leave(stream, how) > before
    assert server.cancelled.wait(10)
    assert stream.reading.left == how


def test_an_open_send_side_ends_by_half_close(server, loop):
    stream = start(server, loop, Normal(), half_close=False)
    assert not stream.wait(0.5)
    assert stream.reading.finish_reason == "length"
    loop.leave(stream, Leave.HALF_CLOSE)
    assert stream.wait(10)
    assert stream.reading.grpc_status == 0


def test_errors_reach_the_reading(server, loop):
    stream = start(server, loop, Normal(), tokens=-1)
    assert stream.wait(10)
    assert stream.reading.error == "max_tokens: -1 is below 0"
    server.server.stop(0).wait()
    with pytest.raises(ConnectionRefusedError):
        loop.connect(ConnectionSettings(port=server.port))


def test_a_connection_window_below_http2s_start_is_refused():
    with pytest.raises(ValueError, match="connection_window"):
        ConnectionSettings(port=1, connection_window=4096)


def test_a_grpcio_reader_stops_and_goes_on(server):
    request = StreamRequest(prompt="x", max_tokens=5000, client_id="g")
    reader = GrpcReader(f"127.0.0.1:{server.port}", request, options=NO_BDP_PROBE)
    reader.stop_reading()
    reader.start()
    assert not reader.wait(0.5)
    assert server.produced["g"] < 5000
    reader.go_on()
    assert reader.wait(20)
    assert reader.reading.text == TEXT * 5000
    assert reader.reading.grpc_status == 0


def test_clients_run_in_a_process_of_their_own(server):
    plan = ClientPlan(
        connection=ConnectionSettings(port=server.port),
        request=StreamRequest(prompt="x", max_tokens=20, client_id="p"),
        share="one",
        repeat=3,
    )
    readings = ReaderProcess([plan, plan]).wait(30)
    assert sorted(each.client_id for each in readings) == ["p#0", "p#0", "p#1", "p#1", "p#2", "p#2"]
    assert all(each.text == TEXT * 20 for each in readings)


def test_a_killed_process_is_gone_at_once(server):
    plan = ClientPlan(
        connection=ConnectionSettings(port=server.port, stream_window=4096),
        request=StreamRequest(prompt="x", max_tokens=10_000),
        policy=Never(),
    )
    process = ReaderProcess([plan])
    while not process.snapshot()[:1] or not process.snapshot()[0].data_bytes:
        assert server.produced is not None
    process.kill()
    assert server.cancelled.wait(10)


def test_looking_at_a_process_does_not_stop_its_clients(server):
    plan = ClientPlan(
        connection=ConnectionSettings(port=server.port),
        request=StreamRequest(prompt="x", max_tokens=20, client_id="p"),
        repeat=1_000_000,
    )
    process = ReaderProcess([plan])
    for answers in range(1, 60):  # one look too many froze them: each look must find more answers, in time
        while len(process.snapshot()) < answers:
            assert process.alive
    assert len(process.stop()) >= 59
