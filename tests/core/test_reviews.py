from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.behind import behind, load
from sluiceway.core.decision import Action, BehindStream, Decision, Load
from sluiceway.core.limits import Size
from sluiceway.core.policy import Mode, Policy, PolicySettings, Reason
from sluiceway.core.returns import End, ReturnEstimator
from sluiceway.core.reviews import Reviews
from sluiceway.core.states import State

IDLE = load(waiting=0, longest_wait_s=0.0, kv_blocks_free=300)
BUSY = load(longest_wait_s=5.0)


def reviews(*ids: str, **options: Any) -> Reviews:
    made = Reviews(Policy(), **options)
    for request_id in ids:
        made.add(request_id, 0.0)
    return made


def all_alike(**changes: Any) -> Callable[[str], BehindStream | None]:
    return lambda request_id: behind(request_id=request_id, **changes)


def actions(decided: list[tuple[str, Decision]]) -> dict[str, Action]:
    return {request_id: decision.action for request_id, decision in decided}


def test_the_first_look_is_told_and_then_only_what_changes() -> None:
    made = reviews("a")
    assert made.next_deadline() == 0.0
    assert actions(made.review(0.0, IDLE, all_alike())) == {"a": Action.HOLD}
    assert made.next_deadline() == 0.25
    assert made.review(0.25, IDLE, all_alike()) == []
    assert actions(made.review(0.5, BUSY, all_alike(silence_s=9.0))) == {"a": Action.DROP}
    assert made.review(1.5, BUSY, all_alike(state=State.PREEMPTED, kv_blocks=0)) == []


def test_nothing_but_an_end_within_the_dwell() -> None:
    made = reviews("a")
    ((_, decision),) = made.review(0.0, BUSY, all_alike(silence_s=9.0))
    assert (decision.action, decision.reason) == (Action.HOLD, Reason.DWELL)
    assert made.review(0.49, BUSY, all_alike(silence_s=9.0)) == []
    assert actions(made.review(0.75, BUSY, all_alike(silence_s=9.0))) == {"a": Action.DROP}
    assert made.review(1.0, BUSY, all_alike(silence_s=9.0)) == []
    assert actions(made.review(1.02, BUSY, all_alike(silence_s=50.0))) == {}  # not due yet
    assert actions(made.review(1.25, BUSY, all_alike(silence_s=50.0))) == {"a": Action.CANCEL}


def test_who_is_gone_is_forgotten() -> None:
    made = reviews("a", "b")
    made.remove("a", 0.0, returned=True)
    made.remove("a", 0.0, returned=True)
    assert "a" not in made
    assert len(made) == 1
    assert made.review(0.0, IDLE, lambda _: None) == []
    assert len(made) == 0
    assert made.next_deadline() is None


def test_the_deadline_is_of_a_stream_that_is_still_behind() -> None:
    made = reviews("a")
    made.add("b", 7.0)
    made.remove("a", 1.0, returned=True)
    assert made.next_deadline() == 7.0


def test_added_twice_is_behind_since_the_first_time() -> None:
    made = reviews("a")
    made.review(0.0, IDLE, all_alike())
    made.add("a", 0.25)
    assert len(made) == 1
    assert made.review(0.25, IDLE, all_alike()) == []


def test_at_most_so_many_in_a_turn_and_nobody_is_passed_over() -> None:
    made = reviews(*(str(n) for n in range(200)), max_per_turn=8)
    seen: Counter[str] = Counter()

    def describe(request_id: str) -> BehindStream:
        seen[request_id] += 1
        return behind(request_id=request_id)

    now = 0.0
    for turn in range(1, 51):
        made.review(now, IDLE, describe)
        assert sum(seen.values()) == 8 * turn
        now += 0.02
    assert set(seen.values()) == {2}  # 50 turns of 8 are two rounds of 200


def test_calls_too_soon_do_nothing_and_the_deadline_says_so() -> None:
    made = reviews("a", "b", max_per_turn=1)
    assert len(made.review(0.0, IDLE, all_alike())) == 1
    assert made.review(0.019, IDLE, all_alike()) == []
    assert made.next_deadline() == 0.02
    assert len(made.review(0.02, IDLE, all_alike())) == 1


def test_streams_that_hold_nothing_are_looked_at_less_often() -> None:
    made = reviews("a")
    made.review(0.0, IDLE, all_alike(state=State.PREEMPTED, kv_blocks=0))
    assert made.next_deadline() == 1.0


@pytest.mark.parametrize("mode", ["cost", "hold", "drop"])
def test_of_a_stream_without_kv_nothing_is_told_but_its_end(mode: Mode) -> None:
    """A returned client's, fed from the spool: paused, and nothing to give."""
    made = Reviews(Policy(mode=mode))
    made.add("a", 0.0)
    for n in range(30):
        assert made.review(float(n), BUSY, all_alike(kv_blocks=0, kv_tokens=0, behind_s=n, silence_s=1.0)) == []
    assert len(made) == 1
    ((_, decision),) = made.review(50.0, BUSY, all_alike(kv_blocks=0, kv_tokens=0, behind_s=50.0, silence_s=50.0))
    assert (decision.action, decision.reason) == (Action.CANCEL, Reason.SILENT)


def test_one_that_waits_does_not_cost_every_paused_stream_its_kv() -> None:
    """512 blocks: 32 at a time, and the next only once the engine can have answered (two steps of 25 ms)."""
    made = reviews(*"abcdefgh")
    made.review(0.0, BUSY, all_alike())
    describe = all_alike(silence_s=9.0, kv_blocks=16, kv_tokens=256)
    assert len(made.review(1.0, BUSY, describe)) == 2
    assert made.next_deadline() == pytest.approx(1.05)
    made.add("new", 0.0)
    assert made.review(1.03, BUSY, describe) == []  # one that is due only now has to wait, too
    assert len(made.review(1.05, BUSY, describe)) == 2
    # Nobody waits any more, so the others keep theirs.
    satisfied = load(waiting=0, longest_wait_s=0.0, kv_blocks_free=200)
    assert actions(made.review(1.2, satisfied, describe)) == {"new": Action.HOLD}


def test_who_saves_most_goes_first() -> None:
    made = reviews("cheap", "dear")
    made.review(0.0, BUSY, all_alike())
    tokens = {"cheap": 2000, "dear": 100}
    decided = made.review(
        1.0, BUSY, lambda request_id: behind(request_id=request_id, silence_s=30.0, kv_tokens=tokens[request_id])
    )
    assert actions(decided) == {"dear": Action.DROP}


def test_no_more_is_given_away_in_a_turn_than_there_is() -> None:
    made = reviews("a", "b", "c")
    tight = load(kv_blocks_total=8192, host_blocks_free=90, swap_blocks_per_s=4000.0, longest_wait_s=5.0)
    made.review(0.0, tight, all_alike())
    describe = all_alike(silence_s=40.0, kv_tokens=64_000)
    assert list(actions(made.review(1.0, tight, describe)).values()) == [Action.SWAP, Action.SWAP]  # 2 x 40 of 90

    made = reviews("a", "b", "c")
    spool = replace(tight, swap_blocks_per_s=0.0, spool_free_bytes=15_000, batch_free=10)
    made.review(0.0, spool, all_alike())
    describe = all_alike(silence_s=40.0, tokens_left=20, spool_bytes_left=5000)
    assert list(actions(made.review(1.0, spool, describe)).values()) == [Action.RUN_AHEAD, Action.RUN_AHEAD]
    assert len(made.review(2.0, replace(spool, batch_free=1), describe)) == 1

    made = reviews("a", "b")
    describe = all_alike(silence_s=50.0, is_resumable=True, spool_bytes_left=1000)
    decided = made.review(0.0, load(spool_free_bytes=20_000), describe)
    assert sorted(actions(decided).values()) == [Action.DETACH]  # the other is asked again, and cancelled if need be
    decided = made.review(0.02, load(spool_free_bytes=2_500), describe)
    assert sorted(actions(decided).values()) == [Action.CANCEL]


def test_the_arm_that_drops_by_the_clock_drops_all_at_once() -> None:
    made = Reviews(Policy(mode="drop"))
    for request_id in "abcdefgh":
        made.add(request_id, 0.0)
    made.review(0.0, BUSY, all_alike(behind_s=0.0))
    assert len(made.review(2.0, IDLE, all_alike(behind_s=2.0))) == 8


@pytest.mark.parametrize(
    ("last", "returned", "taught"),
    [
        ({}, True, End.RETURNED),
        ({}, False, End.LEFT),
        ({"silence_s": 50.0}, False, End.CENSORED),
        ({"silence_s": 40.0, "tokens_left": 20, "spool_bytes_left": 500}, True, End.CENSORED),
    ],
)
def test_what_it_learns(monkeypatch: pytest.MonkeyPatch, last: dict[str, Any], returned: bool, taught: End) -> None:
    learnt: list[tuple[float, End]] = []
    monkeypatch.setattr(ReturnEstimator, "learn", lambda _, away_s, end: learnt.append((away_s, end)))
    made = reviews("a")
    made.review(1.0, BUSY, all_alike(**last))
    made.remove("a", 4.0, returned)
    assert learnt == [(4.0, taught)]


def test_clients_that_never_come_back_make_dropping_cheaper() -> None:
    """A long answer: recomputing it is dear, so it is kept until experience says that nobody wants it."""
    describe = all_alike(drain_bytes_per_s=0.0, silence_s=2.0, kv_tokens=4000)
    made = reviews("a")
    made.review(0.0, BUSY, describe)
    assert made.review(2.0, BUSY, describe) == []
    for index in range(300):
        made.add(f"gone-{index}", 2.0)
        made.remove(f"gone-{index}", 40.0, returned=False)
    assert actions(made.review(40.0, BUSY, describe)) == {"a": Action.DROP}


def test_its_own_progress_counts_more_than_a_burst_long_ago() -> None:
    """60 KB went into the client's buffers at once, since then 100 B/s: two minutes to go, not two seconds."""
    made = reviews("a")
    made.review(0.0, BUSY, all_alike(drain_bytes_per_s=6000.0, resume_bytes=12_000))
    describe = all_alike(drain_bytes_per_s=6000.0, resume_bytes=11_800)
    ((_, decision),) = made.review(2.0, BUSY, describe)
    assert decision.action is Action.DROP
    assert decision.costs[Action.HOLD] == pytest.approx(40 / 512 * 60 * 0.977, abs=0.01)  # 118 s, at most the horizon
    # It reads, so it is half as likely to leave as the prior's one in five, which makes it dearer to recompute.
    assert decision.costs[Action.DROP] == pytest.approx(0.9 * 640 / 2000)


@pytest.mark.parametrize("first_resume_bytes", [12_000, 200])
def test_who_has_been_silent_for_long_is_expected_to_be_so_for_as_long_again(first_resume_bytes: int) -> None:
    """Little is left to read and its rate was high, with progress (12,000 bytes) or without: then it fell silent."""
    made = reviews("a")
    made.review(0.0, IDLE, all_alike(resume_bytes=first_resume_bytes))
    ((_, decision),) = made.review(12.0, BUSY, all_alike(resume_bytes=200, silence_s=10.0))
    assert decision.costs[Action.HOLD] == pytest.approx(40 / 512 * 10 * 0.977, abs=0.01)


@pytest.mark.parametrize("wrong", [{"review_s": 0.0}, {"max_per_turn": 0}])
def test_no_reviews_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Reviews(Policy(), **wrong)


@dataclass
class Reader:
    """A steady client, and a stream that does what is decided about it."""

    rate: float
    resume_bytes: int
    is_resumable: bool
    state: State
    kv_blocks: int
    tokens_left: int
    host_blocks: int = 0

    def at(self, request_id: str, now: float) -> BehindStream:
        left = max(0, self.resume_bytes - int(self.rate * now))
        return behind(
            request_id=request_id,
            state=self.state,
            behind_s=now,
            silence_s=0.1 if self.rate else now,
            drain_bytes_per_s=self.rate,
            resume_bytes=left,
            backlog=Size(bytes=4096 + left, tokens=50, frames=5),
            tokens_left=self.tokens_left,
            kv_blocks=self.kv_blocks,
            host_blocks=self.host_blocks,
            kv_tokens=16 * 40,
            spool_bytes_left=20 * self.tokens_left,
            is_resumable=self.is_resumable,
        )

    def obey(self, action: Action) -> None:
        if action is Action.SWAP:
            self.state, self.kv_blocks, self.host_blocks = State.SWAPPED, 0, self.kv_blocks
        elif action is Action.DROP:
            self.state, self.kv_blocks, self.host_blocks = State.PREEMPTED, 0, 0


READERS = st.builds(
    Reader,
    rate=st.one_of(st.just(0.0), st.floats(1, 5000)),
    resume_bytes=st.integers(1, 12_288),
    is_resumable=st.booleans(),
    state=st.sampled_from([State.PAUSED, State.PREEMPTED, State.DRAINING]),
    kv_blocks=st.integers(1, 120),
    tokens_left=st.integers(1, 3000),
)
STEADY_LOADS = st.builds(
    load,
    kv_blocks_free=st.integers(0, 200),
    host_blocks_free=st.integers(0, 200),
    batch_free=st.integers(0, 24),
    waiting=st.integers(0, 20),
    longest_wait_s=st.floats(0, 30),
    swap_blocks_per_s=st.one_of(st.just(0.0), st.floats(100, 1e5)),
    spool_free_bytes=st.integers(0, 1 << 20),
)
# A stream is out of it by then: silent or too slow after its grace, or read at the slowest rate that is
# welcome from the high watermark to the low one (12,288 bytes / 64 B/s = 192 s), and a round of reviews.
LONGEST_S = 192.0 + 2.0


@settings(max_examples=60, deadline=None)
@given(st.lists(READERS, min_size=1, max_size=6), STEADY_LOADS, st.sampled_from(["cost", "hold", "drop"]))
def test_under_steady_inputs_it_settles_and_no_stream_is_behind_for_ever(
    readers: list[Reader], machine: Load, mode: Mode
) -> None:
    made = Reviews(Policy(PolicySettings(), mode))
    streams = {str(index): reader for index, reader in enumerate(readers)}
    told: dict[str, list[tuple[float, Action]]] = {request_id: [] for request_id in streams}
    for request_id in streams:
        made.add(request_id, 0.0)
    now = 0.0
    while made and now < LONGEST_S:
        now = max(now, made.next_deadline() or now)
        decided = made.review(now, machine, lambda request_id: streams[request_id].at(request_id, now))  # noqa: B023
        assert len({request_id for request_id, _ in decided}) == len(decided), "two actions at once"
        for request_id, decision in decided:
            told[request_id].append((now, decision.action))
            streams[request_id].obey(decision.action)
            if decision.action in (Action.RUN_AHEAD, Action.DETACH, Action.CANCEL):
                made.remove(request_id, now, returned=False)
        for request_id in [each for each in streams if each in made and streams[each].at(each, now).resume_bytes == 0]:
            made.remove(request_id, now, returned=True)
    assert len(made) == 0
    for history in told.values():
        order = [action for _, action in history]
        # First hold (the dwell), then at most: swap, drop, an end. Each once, in this order.
        assert order[0] in (Action.HOLD, Action.DETACH, Action.CANCEL)
        ladder = [Action.HOLD, Action.SWAP, Action.DROP, Action.RUN_AHEAD, Action.DETACH, Action.CANCEL]
        ranks = [ladder.index(action) for action in order]
        assert ranks == sorted(set(ranks))
        changes = [at for at, action in history if action in (Action.SWAP, Action.DROP)]
        assert all(later - earlier >= 0.5 for earlier, later in pairwise(changes))
