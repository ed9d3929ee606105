"""A client that leaves gets its KV blocks taken back at once and exactly once, however it leaves."""

from __future__ import annotations

import pytest

from sluiceway.cli.bench.cancel import BATCH_STREAMS, LEAVING
from sluiceway.cli.bench.departures import (
    WAYS,
    Situation,
    finished_entries,
    leave_once,
    outcomes,
    wait_until_idle,
)
from sluiceway.cli.bench.holders import Holders
from sluiceway.cli.stack import Stack, StackSettings

pytestmark = pytest.mark.e2e

KV_FREE_MS = 1000  # a bound for a busy test machine; `bench cancel` promises 300 at p99
WASTED_TOKENS = 16


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with Stack(StackSettings(run_dir=tmp_path_factory.mktemp("cancel"), config=LEAVING)) as running:
        yield running


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("situation", [Situation.PREFILL, Situation.DECODING, Situation.PAUSED])
def test_leaving_frees_everything_once(stack, situation, way):
    check(stack, situation, way, clients=1 if situation is Situation.PREFILL else 3)


@pytest.mark.parametrize("way", WAYS)
def test_leaving_the_queue(stack, way):
    with Holders(stack, BATCH_STREAMS):
        check(stack, Situation.QUEUED, way, clients=3)
    wait_until_idle(stack)


def check(stack, situation, way, clients):
    before = stack.statistics()

    left = leave_once(stack, situation, way, clients)

    entries = finished_entries(stack, [departure.client_id for departure in left])
    if situation is not Situation.QUEUED:
        after = wait_until_idle(stack)
        assert after["engine"]["kv_blocks_free"] == before["engine"]["kv_blocks_free"]
    after = stack.statistics()
    for name in ("aborts", "disconnects"):
        assert after["totals"][name] - before["totals"][name] == clients
    for outcome in outcomes(left, entries):
        assert outcome.finish_reason == "cancelled"
        assert outcome.kv_free_ms < KV_FREE_MS
        assert outcome.wasted_tokens <= WASTED_TOKENS
