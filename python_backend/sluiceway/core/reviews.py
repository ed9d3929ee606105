"""Which streams the policy looks at, when, and how often it may change its mind. Used by driver and simulator."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sluiceway.core.costs import Outlook
from sluiceway.core.decision import Action, BehindStream, Decision, Load
from sluiceway.core.policy import Policy, Reason
from sluiceway.core.pressure import PeakPressure
from sluiceway.core.returns import End, ReturnEstimator

TURN_S = 0.02  # at most max_per_turn streams in this time, however often review() is called
RELAXED = 4  # streams that hold no device blocks have nothing to give: looked at so many times less often
RECLAIM_SHARE = 16  # of all blocks, one part may be reclaimed before the next load is known
PROGRESS_S = 1.0  # how long to watch a stream before its own progress is believed

_ENDS = (Action.DETACH, Action.CANCEL)
_Describe = Callable[[str], BehindStream | None]


@dataclass(slots=True)
class _Entry:
    request_id: str
    added_at: float
    changed_at: float
    due: float
    last: Action | None = None
    first_resume_bytes: int | None = None
    is_live: bool = True


@dataclass(slots=True)
class _Candidate:
    entry: _Entry
    stream: BehindStream
    decision: Decision

    @property
    def gain_s(self) -> float:
        """Machine seconds saved against holding; endings come before everything."""
        costs = self.decision.costs
        if self.decision.action not in costs:
            return math.inf
        return costs[Action.HOLD] - costs[self.decision.action]


class Reviews:
    """A heap of streams by when they are due. add, remove: O(log n); review: O(max_per_turn log n).

    A stream is decided about when it falls behind and then every review_s, or later if more than
    max_per_turn are due at once; none is passed over for ever, since the heap is in order of time.
    No change of mind within min_dwell_s, except to end a stream. In one turn no more is given away than
    there is: blocks on the host, room in the spool, places in the batch; and no more is reclaimed than a
    part of all blocks before the engine's answer can be seen, so that one waiting request does not
    cost every paused stream its KV. Who saves most goes first.
    """

    def __init__(self, policy: Policy, *, review_s: float = 0.25, max_per_turn: int = 16) -> None:
        if review_s <= 0 or max_per_turn < 1:
            raise ValueError(f"review_s is {review_s}, max_per_turn {max_per_turn}: both must be positive")
        self._policy = policy
        self._review_s = review_s
        self._max_per_turn = max_per_turn
        self._pressure = PeakPressure(policy.settings)
        self._returns = ReturnEstimator()
        self._entries: dict[str, _Entry] = {}
        self._heap: list[tuple[float, int, _Entry]] = []
        self._pushed = 0  # breaks ties in the heap: first in, first out
        self._next_turn_at = self._next_reclaim_at = -math.inf

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def add(self, request_id: str, now: float) -> None:
        """The stream is behind from now on. One that is behind already stays as it is."""
        if request_id not in self._entries:
            entry = self._entries[request_id] = _Entry(request_id, now, now, now)
            self._push(entry)

    def remove(self, request_id: str, now: float, returned: bool) -> None:
        """The stream is no longer behind. returned: its client read on; else it left. Unknown ids are ignored.

        What our own decision ended (or let run ahead) says nothing about the client, whatever ``returned`` is.
        """
        if (entry := self._entries.pop(request_id, None)) is None:
            return
        entry.is_live = False
        end = End.RETURNED if returned else End.LEFT
        if entry.last in (*_ENDS, Action.RUN_AHEAD):
            end = End.CENSORED
        self._returns.learn(max(now - entry.added_at, 0.0), end)

    def next_deadline(self) -> float | None:
        """When review() has something to do; None with nobody behind."""
        while self._heap and not self._heap[0][2].is_live:
            heapq.heappop(self._heap)
        return max(self._heap[0][0], self._next_turn_at) if self._heap else None

    def review(self, now: float, load: Load, describe: _Describe) -> list[tuple[str, Decision]]:
        """Look at those that are due; answer the decisions that change something, and the first about each KV.

        describe: the stream as it is now; None if it is not behind any more, which forgets it.
        """
        if now < self._next_turn_at:
            return []
        self._next_turn_at = now + TURN_S
        pressure = self._pressure.update(load, now)
        candidates: list[_Candidate] = []
        due = self._due(now)
        for entry in due:
            if (stream := describe(entry.request_id)) is None:
                self.remove(entry.request_id, now, returned=True)
                continue
            entry.due = now + self._review_s * (1 if stream.kv_blocks > 0 else RELAXED)
            decision = self._decide(entry, stream, load, pressure, now)
            # A returned client's stream, fed from the spool, pauses as often as it likes: nothing to tell.
            if decision.action is not Action.HOLD or (entry.last is None and stream.holds_kv):
                candidates.append(_Candidate(entry, stream, decision))
        granted = self._grant(candidates, load, now)
        for entry in due:
            if entry.is_live:
                self._push(entry)
        return granted

    def _push(self, entry: _Entry) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (entry.due, self._pushed, entry))

    def _due(self, now: float) -> list[_Entry]:
        due: list[_Entry] = []
        while self._heap and self._heap[0][0] <= now and len(due) < self._max_per_turn:
            entry = heapq.heappop(self._heap)[2]
            if entry.is_live:
                due.append(entry)
        return due

    def _decide(self, entry: _Entry, stream: BehindStream, load: Load, pressure: float, now: float) -> Decision:
        if entry.first_resume_bytes is None:
            entry.first_resume_bytes = stream.resume_bytes
        decision = self._policy.decide(stream, load, self._outlook(entry, stream, now), pressure)
        dwells = now - entry.changed_at < self._policy.settings.min_dwell_s
        if dwells and decision.action is not Action.HOLD and decision.action not in _ENDS:
            return replace(decision, action=Action.HOLD, reason=Reason.DWELL, run_ahead_bytes=0)
        return decision

    def _outlook(self, entry: _Entry, stream: BehindStream, now: float) -> Outlook:
        """What is known of streams like it, corrected by what this one has been seen to do."""
        watched_s = now - entry.added_at
        learnt = self._returns.outlook(watched_s)
        progress = (entry.first_resume_bytes or 0) - stream.resume_bytes
        if progress > 0 and watched_s >= PROGRESS_S:
            # It reads: its own pace since it fell behind is the best forecast, and leaving half as likely.
            away_s = stream.resume_bytes * watched_s / progress
            return Outlook((1.0 + learnt.chance_of_return) / 2, max(away_s, stream.silence_s))
        rate = stream.drain_bytes_per_s
        away_s = stream.resume_bytes / rate if rate > 0 else learnt.away_s
        # Whoever has been silent for so long is expected to be so for as long again.
        return Outlook(learnt.chance_of_return, max(away_s, stream.silence_s))

    def _grant(self, candidates: list[_Candidate], load: Load, now: float) -> list[tuple[str, Decision]]:
        granted: list[tuple[str, Decision]] = []
        host_blocks, spool_bytes = load.host_blocks_free, load.spool_free_bytes
        places = max(load.batch_free, 1)
        reclaimable = max(load.kv_blocks_total // RECLAIM_SHARE, 1) if now >= self._next_reclaim_at else 0
        for each in sorted(candidates, key=lambda candidate: candidate.gain_s, reverse=True):
            stream, decision = each.stream, each.decision
            match decision.action:
                case Action.SWAP if reclaimable > 0 and stream.kv_blocks <= host_blocks:
                    host_blocks -= stream.kv_blocks
                    reclaimable -= stream.kv_blocks
                case Action.DROP if not decision.costs:
                    pass  # by the clock, not by need
                case Action.DROP if reclaimable > 0:
                    reclaimable -= stream.kv_blocks
                case Action.RUN_AHEAD if reclaimable > 0 and places > 0 and decision.run_ahead_bytes <= spool_bytes:
                    places -= 1
                    spool_bytes -= decision.run_ahead_bytes
                    reclaimable -= stream.kv_blocks
                case Action.DETACH if stream.backlog.bytes + stream.spool_bytes_left <= spool_bytes:
                    spool_bytes -= stream.backlog.bytes + stream.spool_bytes_left
                case Action.HOLD | Action.CANCEL:
                    pass
                case _:  # not in this turn, but as soon as what was granted can be seen
                    each.entry.due = max(self._next_reclaim_at, self._next_turn_at)
                    continue
            if decision.costs and decision.action in (Action.SWAP, Action.DROP, Action.RUN_AHEAD):
                self._next_reclaim_at = now + max(TURN_S, 2 * load.step_s)
            if decision.action is not Action.HOLD:
                each.entry.changed_at = now
            each.entry.last = decision.action
            granted.append((each.entry.request_id, decision))
        return granted
