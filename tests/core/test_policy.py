from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from core.behind import behind, load
from sluiceway.core.costs import Outlook, costs
from sluiceway.core.decision import Action, BehindStream, Load
from sluiceway.core.drain import DrainRate
from sluiceway.core.limits import Size
from sluiceway.core.policy import Mode, Policy, PolicySettings, Reason
from sluiceway.core.pressure import PeakPressure, pressure
from sluiceway.core.states import State

SETTINGS = PolicySettings()
IDLE = load(waiting=0, longest_wait_s=0.0, kv_blocks_free=300)
SWAPPING = load(host_blocks_free=400, swap_blocks_per_s=4000.0)

STREAMS = st.builds(
    behind,
    state=st.sampled_from(State),
    behind_s=st.floats(0, 200),
    silence_s=st.floats(0, 200),
    drain_bytes_per_s=st.floats(0, 1e5),
    resume_bytes=st.integers(0, 20_000),
    tokens_left=st.integers(0, 4000),
    kv_blocks=st.integers(0, 512),
    host_blocks=st.integers(0, 512),
    kv_tokens=st.integers(1, 8192),
    spool_bytes_left=st.integers(0, 1 << 21),
    is_resumable=st.booleans(),
    tier=st.integers(-1, 3),
)
LOADS = st.builds(
    load,
    kv_blocks_total=st.integers(0, 1024),
    kv_blocks_free=st.integers(0, 1024),
    host_blocks_free=st.integers(0, 1024),
    batch_streams=st.integers(0, 64),
    batch_free=st.integers(0, 64),
    waiting=st.integers(0, 100),
    longest_wait_s=st.floats(0, 300),
    step_s=st.one_of(st.just(0.0), st.floats(1e-4, 1)),
    prefill_tokens_per_s=st.one_of(st.just(0.0), st.floats(1, 1e6)),
    swap_blocks_per_s=st.one_of(st.just(0.0), st.floats(1, 1e6)),
    spool_free_bytes=st.integers(0, 1 << 22),
)
OUTLOOKS = st.builds(Outlook, st.floats(0, 1), st.floats(0, 1e4))
PRESSURES = st.floats(0, 1)


def test_the_worked_example_of_the_docs() -> None:
    """docs/flow-control.md, "A worked example": change both together."""
    policy = Policy()
    outlook = Outlook(chance_of_return=0.8, away_s=6.0)
    assert pressure(load(), SETTINGS) == pytest.approx(0.7625)
    decision = policy.decide(behind(), load(), outlook)
    assert decision.costs == pytest.approx({Action.HOLD: 0.357, Action.DROP: 0.256}, abs=1e-3)
    assert (decision.action, decision.reason) == (Action.DROP, Reason.CHEAPEST)
    # With room on the host and 4,000 blocks a second, swapping is cheaper by far.
    decision = policy.decide(behind(), SWAPPING, outlook)
    assert decision.costs[Action.SWAP] == pytest.approx(0.018)
    assert decision.action is Action.SWAP
    # With 60 tokens to go it is cheapest to have done with it.
    decision = policy.decide(behind(tokens_left=60, spool_bytes_left=7200), load(), outlook)
    assert decision.costs[Action.RUN_AHEAD] == pytest.approx(0.099, abs=1e-3)
    assert (decision.action, decision.run_ahead_bytes) == (Action.RUN_AHEAD, 9001)
    # And with nobody who wants the blocks, nothing is done.
    decision = policy.decide(behind(), IDLE, outlook)
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.NO_PRESSURE)


def test_a_short_absence_is_cheaper_to_wait_for() -> None:
    decision = Policy().decide(behind(), load(), Outlook(0.8, 0.3))
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.CHEAPEST)


def test_a_small_advantage_is_not_worth_a_change() -> None:
    one = Outlook(1.0, 6.0)
    decision = Policy().decide(behind(), load(), one)
    assert decision.costs == pytest.approx({Action.HOLD: 0.357, Action.DROP: 0.32}, abs=1e-3)  # 0.9 of it
    assert decision.action is Action.HOLD
    assert Policy(PolicySettings(margin=0.95)).decide(behind(), load(), one).action is Action.DROP
    tiny = behind(kv_blocks=1, tokens_left=1, spool_bytes_left=10)  # nothing against a hundredth of a millisecond
    unhurried = load(kv_blocks_total=100_000, batch_free=24)
    assert Policy().decide(tiny, unhurried, Outlook(1.0, 1.0)).action is Action.HOLD


def test_the_grant_stays_within_the_spool() -> None:
    short = behind(tokens_left=20, spool_bytes_left=5000)
    decision = Policy().decide(short, load(spool_free_bytes=5500), Outlook(0.8, 6.0))
    assert (decision.action, decision.run_ahead_bytes) == (Action.RUN_AHEAD, 5500)


def test_without_an_outlook_the_streams_own_rate_counts() -> None:
    assert Policy().decide(behind(resume_bytes=200), load(longest_wait_s=5.0)).action is Action.HOLD
    assert Policy().decide(behind(resume_bytes=12_000), load(longest_wait_s=5.0)).action is Action.DROP
    # A lump long ago is no rate: silent for 20 s, so expected to be so for 20 more.
    assert Policy().decide(behind(resume_bytes=200, silence_s=20.0), load(longest_wait_s=5.0)).action is Action.DROP
    assert Policy().decide(behind(drain_bytes_per_s=0.0, behind_s=20.0), load(longest_wait_s=5.0)).action is Action.DROP


@pytest.mark.parametrize(
    ("stream", "machine", "impossible"),
    [
        ({}, {"swap_blocks_per_s": 4000.0, "host_blocks_free": 39}, Action.SWAP),
        ({}, {"swap_blocks_per_s": 0.0, "host_blocks_free": 400}, Action.SWAP),
        ({"kv_blocks": 0}, {"swap_blocks_per_s": 4000.0, "host_blocks_free": 400}, Action.SWAP),
        ({"kv_blocks": 0}, {}, Action.DROP),
        ({"tokens_left": 257, "spool_bytes_left": 100}, {}, Action.RUN_AHEAD),
        ({"tokens_left": 0, "spool_bytes_left": 100}, {}, Action.RUN_AHEAD),
        ({"tokens_left": 20, "spool_bytes_left": 101}, {"spool_free_bytes": 100}, Action.RUN_AHEAD),
        ({"tokens_left": 20, "spool_bytes_left": 100}, {"step_s": 0.0}, Action.RUN_AHEAD),
        ({"state": State.SWAPPED, "host_blocks": 40, "kv_blocks": 0}, {"host_blocks_free": 40}, Action.DROP),
    ],
)
def test_what_cannot_be_done_is_not_offered(
    stream: dict[str, Any], machine: dict[str, Any], impossible: Action
) -> None:
    assert impossible not in costs(behind(**stream), load(**machine), Outlook(0.8, 6.0), 1.0, SETTINGS)


def test_run_ahead_never_takes_the_place_of_who_waits_for_one_for_free() -> None:
    stream, sure = behind(tokens_left=60, spool_bytes_left=7200), Outlook(1.0, 6.0)
    free = costs(stream, load(), sure, 0.0, SETTINGS)[Action.RUN_AHEAD]
    full = costs(stream, load(batch_streams=32, batch_free=0), sure, 0.0, SETTINGS)[Action.RUN_AHEAD]
    assert free == 0
    assert full == pytest.approx(60 * 0.025 / 32)


def test_swapped_streams_stay_until_the_host_is_short_of_room() -> None:
    swapped = behind(state=State.SWAPPED, kv_blocks=0, host_blocks=40)
    unsure = Outlook(0.3, 20.0)
    roomy, full = SWAPPING, replace(SWAPPING, host_blocks_free=10)
    assert Policy().decide(swapped, roomy, unsure).action is Action.HOLD
    decision = Policy().decide(swapped, full, unsure)
    assert (decision.action, decision.reason) == (Action.DROP, Reason.HOST_FULL)
    assert Policy().decide(swapped, full, Outlook(0.95, 20.0)).action is Action.HOLD  # most likely to be wanted again
    refused = behind(state=State.SWAPPED, kv_blocks=40, host_blocks=0)  # the host pool had no room after all
    assert Policy().decide(refused, load(), Outlook(0.8, 20.0)).action is Action.DROP


def test_the_end_comes_after_grace_and_only_then() -> None:
    policy = Policy(PolicySettings(grace_s=(60.0, 120.0), max_silence_s=(50.0, 100.0)))
    slow = {"drain_bytes_per_s": 63.9}
    assert policy.decide(behind(behind_s=59.9, **slow), load()).action is not Action.CANCEL
    decision = policy.decide(behind(behind_s=60.0, **slow), load())
    assert (decision.action, decision.reason) == (Action.CANCEL, Reason.TOO_SLOW)
    assert policy.decide(behind(behind_s=1e6, drain_bytes_per_s=64.0), load()).action is not Action.CANCEL
    assert policy.decide(behind(silence_s=49.9), load()).action is not Action.CANCEL
    decision = policy.decide(behind(silence_s=50.0), load())
    assert (decision.action, decision.reason) == (Action.CANCEL, Reason.SILENT)
    for tier in (1, 2):  # the last value holds for every higher tier
        assert policy.decide(behind(behind_s=60.0, silence_s=50.0, tier=tier, **slow), load()).action is Action.DROP
        assert policy.decide(behind(behind_s=120.0, tier=tier, **slow), load()).action is Action.CANCEL
        assert policy.decide(behind(silence_s=100.0, tier=tier), load()).action is Action.CANCEL


def test_who_can_come_back_is_detached_instead_if_the_spool_has_room() -> None:
    silent = behind(silence_s=50.0, is_resumable=True)
    needs = silent.backlog.bytes + silent.spool_bytes_left
    assert Policy().decide(silent, load(spool_free_bytes=needs)).action is Action.DETACH
    assert Policy().decide(silent, load(spool_free_bytes=needs - 1)).action is Action.CANCEL
    assert Policy(mode="hold").decide(silent, load()).action is Action.CANCEL


@pytest.mark.parametrize("state", [State.DRAINING, State.PREEMPTED, State.STREAMING])
def test_a_stream_with_nothing_to_give_is_only_held_or_ended(state: State) -> None:
    decision = Policy().decide(behind(state=state), load())
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.HOLDS_NOTHING)
    assert Policy().decide(behind(state=state, silence_s=50.0), load()).action is Action.CANCEL


def test_the_arms() -> None:
    assert Policy(mode="hold").decide(behind(behind_s=1000.0), load()).action is Action.HOLD
    drop = Policy(mode="drop")
    assert drop.decide(behind(behind_s=1.99), load()).action is Action.HOLD
    assert drop.decide(behind(behind_s=2.0), IDLE).action is Action.DROP
    assert drop.decide(behind(behind_s=2.0, state=State.PREEMPTED), load()).action is Action.HOLD
    with pytest.raises(ValueError, match="ladder"):
        Policy(mode="ladder")  # type: ignore[arg-type]


@given(
    STREAMS,
    LOADS,
    st.one_of(st.none(), OUTLOOKS),
    st.one_of(st.none(), PRESSURES),
    st.sampled_from(["cost", "hold", "drop"]),
)
def test_one_possible_action_with_its_reason_and_the_same_again(
    stream: BehindStream, machine: Load, outlook: Outlook | None, wanted: float | None, mode: Mode
) -> None:
    decision = Policy(mode=mode).decide(stream, machine, outlook, wanted)
    assert decision == Policy(mode=mode).decide(stream, machine, outlook, wanted)
    assert isinstance(decision.action, Action)
    assert isinstance(decision.reason, Reason)
    assert all(cost >= 0 for cost in decision.costs.values())
    assert decision.run_ahead_bytes <= machine.spool_free_bytes
    assert (decision.run_ahead_bytes > 0) is (decision.action is Action.RUN_AHEAD)
    assert not decision.costs or decision.action in decision.costs
    if decision.action in (Action.SWAP, Action.RUN_AHEAD):
        assert stream.state is State.PAUSED
    if decision.action is Action.DROP:
        assert stream.state in (State.PAUSED, State.SWAPPED)
    if decision.action in (Action.DETACH, Action.CANCEL):
        assert stream.silence_s >= 50 or (stream.behind_s >= 60 and stream.drain_bytes_per_s < 64)


@given(STREAMS, LOADS, OUTLOOKS, PRESSURES, PRESSURES)
def test_more_pressure_never_makes_it_hold_what_it_would_have_given(
    stream: BehindStream, machine: Load, outlook: Outlook, one: float, other: float
) -> None:
    policy = Policy()
    low, high = sorted((one, other))
    assume(policy.decide(stream, machine, outlook, low).action is not Action.HOLD)
    assert policy.decide(stream, machine, outlook, high).action is not Action.HOLD


@given(LOADS, st.integers(0, 50), st.floats(0, 100), st.integers(0, 512))
def test_pressure_rises_with_each_thing_that_makes_it(machine: Load, more: int, longer_s: float, less: int) -> None:
    before = pressure(machine, SETTINGS)
    assert 0 <= before <= 1
    assert pressure(replace(machine, waiting=machine.waiting + more), SETTINGS) >= before - 1e-12
    assert pressure(replace(machine, longest_wait_s=machine.longest_wait_s + longer_s), SETTINGS) >= before - 1e-12
    assert pressure(replace(machine, kv_blocks_free=machine.kv_blocks_free - less), SETTINGS) >= before - 1e-12


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"waiting": 0, "kv_blocks_free": 512}, 0.0),
        ({"waiting": 0, "kv_blocks_free": 0}, 0.05),  # nobody asks yet, but the next one will
        ({"waiting": 50, "batch_free": 0, "kv_blocks_free": 200}, 0.0),  # they wait for a place, not for blocks
        ({"waiting": 50, "longest_wait_s": 30.0}, 1.0),
        ({"kv_blocks_total": 0}, 0.0),
    ],
)
def test_pressure_at_its_corners(changes: dict[str, Any], expected: float) -> None:
    assert pressure(load(**changes), SETTINGS) == pytest.approx(expected, abs=0.01)


def test_pressure_fades_but_is_nothing_when_nobody_wants_anything() -> None:
    peak = PeakPressure(SETTINGS)
    crowd, one = load(waiting=50, longest_wait_s=30.0), load(waiting=1, longest_wait_s=0.0)
    high, low = pressure(crowd, SETTINGS), pressure(one, SETTINGS)
    assert peak.update(crowd, 0.0) == high
    assert low < peak.update(one, 0.5) < high
    assert peak.update(IDLE, 0.6) == 0
    assert low < peak.update(one, 0.7) < high
    assert peak.update(one, 60.0) == pytest.approx(low)


@given(
    rate=st.floats(2 * SETTINGS.min_drain_bytes_per_s, 20_000),
    lump_s=st.floats(0.1, 49.0),
    burst=st.integers(0, 300_000),
    offset_s=st.floats(0, 5),
)
def test_no_steady_slow_reader_is_ever_ended(rate: float, lump_s: float, burst: int, offset_s: float) -> None:
    """It reads at twice the minimum or faster, seen in lumps as far apart as may be, from a client's buffer."""
    policy = Policy()
    drain = DrainRate(0.0)
    backlog = Size(bytes=16_000, tokens=100, frames=9)
    delivered = float(burst)
    drain.observe(Size(bytes=burst, tokens=0, frames=0), backlog, 0.0)
    lumped_at = 0.0
    for step in range(1, 400):
        now = offset_s + step / 2
        if now - lumped_at >= lump_s:
            delivered += rate * (now - lumped_at)
            lumped_at = now
        drain.observe(Size(bytes=int(delivered), tokens=0, frames=0), backlog, now)
        stream = behind(behind_s=now, silence_s=now - lumped_at, drain_bytes_per_s=drain.bytes_per_s(now))
        assert policy.decide(stream, load()).action not in (Action.CANCEL, Action.DETACH)


@pytest.mark.parametrize(
    "wrong",
    [
        {"grace_s": ()},
        {"grace_s": (0.0,)},
        {"max_silence_s": (60.0, 30.0)},
        {"margin": 1.1},
        {"low_free_share": 1.1},
        {"idle_demand": 2.0},
        {"min_dwell_s": -1.0},
        {"wait_half_s": 0.0},
        {"pressure_decay_s": 0.0},
        {"assumed_prefill_tokens_per_s": 0.0},
    ],
)
def test_contradictions_in_the_settings_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PolicySettings(**wrong)


@pytest.mark.parametrize("mode", ["cost", "hold", "drop"])
def test_a_paused_stream_that_holds_no_kv_is_held_whatever_others_want(mode: Mode) -> None:
    decision = Policy(mode=mode).decide(behind(kv_blocks=0, behind_s=9.0, silence_s=5.0), load(longest_wait_s=9.0))
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.HOLDS_NOTHING)
