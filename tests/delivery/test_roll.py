from __future__ import annotations

from dataclasses import replace

from sluiceway.core.record import Record
from sluiceway.delivery.roll import Roll


def record(rpc_id: str, messages: int = 1, *, ended: bool = False) -> Record:
    return Record(rpc_id, messages, 10, 10, ended=ended)


def test_who_is_not_heard_of_by_the_next_listener_expires_once() -> None:
    roll = Roll(record_timeout_s=3.0)
    roll.call(0.0)
    roll.take([record("a"), record("b", 7), record("c")])
    roll.take([record("c", ended=True)])
    assert roll.missing(10.0) == []

    roll.call(18.0)
    roll.reached(20.0)
    roll.take([record("a", 2)])
    roll.reached(21.0)
    assert roll.missing(22.9) == []
    assert roll.missing(23.0) == [replace(record("b", 7), expired=True)]
    assert roll.missing(30.0) == []
    assert roll.open_rpcs == 1


def test_a_listener_that_dies_too_prolongs_the_time() -> None:
    roll = Roll(record_timeout_s=3.0)
    roll.take([record("a")])
    roll.call(9.0)
    roll.reached(10.0)
    roll.call(11.0)
    roll.reached(12.0)
    assert roll.missing(13.5) == []
    assert [each.rpc_id for each in roll.missing(15.0)] == ["a"]


def test_ends_and_expiries_leave_the_roll() -> None:
    roll = Roll(record_timeout_s=3.0)
    roll.take([record("a"), record("b")])
    roll.take([record("a", ended=True), replace(record("b"), expired=True)])
    assert roll.open_rpcs == 0


def test_nobody_expires_while_envoy_reconnects() -> None:
    """Seen in CI with grpcio in Envoy's place: its backoff outlasted ``record_timeout_s``."""
    roll = Roll(record_timeout_s=1.0)
    roll.take([record("stays"), record("leaves")])
    roll.call(10.0)
    assert roll.missing(12.9) == []
    roll.reached(13.0)
    roll.take([record("stays", 2)])
    assert [each.rpc_id for each in roll.missing(14.0)] == ["leaves"]


def test_an_envoy_that_does_not_come_back_is_not_waited_for_longer_than_four_timeouts() -> None:
    roll = Roll(record_timeout_s=1.0)
    roll.take([record("a")])
    roll.call(10.0)
    assert roll.missing(13.9) == []
    assert [each.rpc_id for each in roll.missing(14.0)] == ["a"]
    roll.reached(15.0)
    assert roll.missing(20.0) == []


def test_a_first_record_at_the_last_moment_still_gives_everybody_the_whole_time() -> None:
    roll = Roll(record_timeout_s=1.0)
    roll.take([record("a")])
    roll.call(10.0)
    roll.reached(13.9)
    assert roll.missing(14.8) == []
    assert [each.rpc_id for each in roll.missing(14.9)] == ["a"]
