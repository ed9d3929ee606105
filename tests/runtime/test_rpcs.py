from __future__ import annotations

from sluiceway.core.limits import Size
from sluiceway.core.record import Record
from sluiceway.runtime.rpcs import RpcTable

LIMIT = Size(bytes=1000, tokens=100, frames=10)


def record(rpc_id, **fields):
    return Record(rpc_id, 0, 0, 0, **fields)


def test_rpcs_without_requests_are_bounded_and_the_last_seen_stay():
    table = RpcTable(LIMIT, max_idle=3)
    for number in range(10):
        table.observe(record(f"rpc-{number}"))
    assert len(table) == 3
    table.observe(record("rpc-7"))
    table.observe(record("new"))
    assert table.join("rpc-7", "r1").window.has_signal
    assert not table.join("rpc-8", "r2").window.has_signal  # the one unseen for longest had to go


def test_open_requests_are_never_evicted():
    table = RpcTable(LIMIT, max_idle=1)
    rpcs = [table.join(f"rpc-{number}", f"r{number}") for number in range(5)]
    for number in range(20):
        table.observe(record(f"noise-{number}"))
    assert len(table) == 5 + 1
    assert table.observe(record("rpc-3"))[0] is rpcs[3]


def test_the_ledger_outlives_a_request_of_its_rpc():
    table = RpcTable(LIMIT)
    first = table.join("rpc", "r1")
    table.observe(record("rpc"))
    table.leave(first, "r1")
    assert table.join("rpc", "r2") is first


def test_nothing_stays_of_an_rpc_that_never_had_a_signal():
    table = RpcTable(LIMIT)
    for number in range(10):
        name = None if number % 2 else f"rpc-{number}"
        table.leave(table.join(name, f"r{number}"), f"r{number}")
    assert len(table) == 0


def test_requests_without_an_id_share_nothing():
    table = RpcTable(LIMIT)
    assert table.join(None, "r1") is not table.join(None, "r2")


def test_expired_strangers_are_forgotten():
    table = RpcTable(LIMIT)
    table.observe(record("rpc"))
    table.observe(record("rpc", expired=True))
    assert len(table) == 0


def test_an_end_is_remembered():
    table = RpcTable(LIMIT)
    table.observe(record("rpc", ended=True, detail="remote_reset"))
    assert table.join("rpc", "r1").ended == "remote_reset"
