"""How clients give their window back: pure functions, literal times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.cli.bench.readers import Alternate, Bursts, Dribble, Never, Normal, Rate, StopAfter
from sluiceway.cli.bench.readers.policy import TICK_S, UPDATES_PER_DATA_FRAME, Allowance, Flow


def flow(received, *, window=4096, acknowledged=0, since=0.0, updates=0, data_frames=100):
    return Flow(
        window=window,
        opened_at=0.0,
        received=received,
        acknowledged=acknowledged,
        since=since,
        updates=updates,
        data_frames=data_frames,
    )


def test_a_normal_reader_gives_back_half_windows():
    assert Normal().allowance(flow(2047), 1.0) == Allowance(0)
    assert Normal().allowance(flow(2048), 1.0) == Allowance(2048)


def test_a_never_reader_gives_nothing_back_and_decodes_nothing():
    assert Never().allowance(flow(4096), 1e9) == Allowance(0)
    assert not Never().parses


def test_a_rate_reader_earns_bytes_only_while_something_waits():
    rate = Rate(1000)
    assert rate.allowance(flow(0, since=0.0), 100.0) == Allowance(0)
    assert rate.allowance(flow(500, since=10.0), 10.0) == Allowance(0, 10.0 + TICK_S)
    assert rate.allowance(flow(500, since=8.0), 8.125) == Allowance(125, 8.125 + TICK_S)
    assert rate.allowance(flow(20, since=10.0), 10.1) == Allowance(20, None)


def test_a_dribble_stays_below_the_flood_protection():
    dribble = Dribble(1000)
    assert dribble.allowance(flow(100, since=1.0), 1.0005).bytes == 0
    assert dribble.allowance(flow(100, since=1.0), 1.1).bytes == 1
    spent = flow(100, data_frames=2, updates=5 + 2 * UPDATES_PER_DATA_FRAME)
    assert dribble.allowance(spent, 1e9) == Allowance(0)


def test_bursts_wait_for_their_size_but_never_longer_than_the_window_allows():
    bursts = Bursts(65536, max_wait_s=10.0)
    assert bursts.allowance(flow(4095, since=3.0), 4.0) == Allowance(0, 13.0)
    assert bursts.allowance(flow(4096, since=3.0), 4.0) == Allowance(4096)
    assert bursts.allowance(flow(7, since=3.0), 13.0) == Allowance(7)


def test_alternate_reads_and_stops_by_the_clock():
    alternate = Alternate(read_s=2.0, stop_s=3.0)
    assert alternate.allowance(flow(4096), 1.0) == Allowance(4096)
    assert alternate.allowance(flow(4096), 2.5) == Allowance(0, 5.0)
    assert alternate.allowance(flow(4096), 5.5) == Allowance(4096)


def test_stop_after_stops_for_good():
    assert StopAfter(5000).allowance(flow(4096), 1.0) == Allowance(4096)
    assert StopAfter(5000).allowance(flow(5000, acknowledged=4096), 1e9) == Allowance(0)


POLICIES = [Normal(), Never(), Rate(700), StopAfter(3000), Dribble(), Bursts(2048), Alternate(1, 1)]


@given(
    policy=st.sampled_from(POLICIES),
    received=st.integers(0, 10_000),
    share=st.floats(0, 1),
    since=st.floats(0, 50),
    later=st.floats(0, 50),
)
def test_no_policy_gives_back_more_than_it_got_or_asks_for_a_time_gone_by(policy, received, share, since, later):
    now = since + later
    asked = policy.allowance(flow(received, acknowledged=int(received * share), since=since), now)
    assert 0 <= asked.bytes <= received - int(received * share)
    assert asked.again_at is None or asked.again_at >= now
