"""What to do with a stream that is behind: the cheapest action for everybody else that loses nothing still wanted.

One pure decision from what is known now. When it is asked for, and how often its answer may change, is
reviews.py. The model with a worked example: docs/flow-control.md; why a model: docs/adr/0007.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from sluiceway.core.costs import Outlook, costs
from sluiceway.core.decision import Action, BehindStream, Decision, Load
from sluiceway.core.policy_settings import PolicySettings
from sluiceway.core.pressure import pressure
from sluiceway.core.states import State

__all__ = ["Mode", "Outlook", "Policy", "PolicySettings", "Reason"]

Mode = Literal["cost", "hold", "drop"]


class Reason(StrEnum):
    """Why an action was chosen; the closed set of values of Decision.reason (a metrics label)."""

    NO_PRESSURE = "no_pressure"  # nobody wants what it holds
    CHEAPEST = "cheapest"  # compared with the others in Decision.costs
    HOLDS_NOTHING = "holds_nothing"  # no KV here or on the host, or the engine is done with it
    HOST_FULL = "host_full"  # swapped out, and others need the room on the host
    DWELL = "dwell"  # fell behind, or was decided about, too short a time ago
    MODE_HOLD = "mode_hold"  # the arm that only holds
    MODE_DROP = "mode_drop"  # the arm that drops by the clock
    SILENT = "silent"  # nothing was delivered for max_silence_s of its tier
    TOO_SLOW = "too_slow"  # behind for the grace of its tier, and below min_drain_bytes_per_s


class Policy:
    """mode: "cost" is ours; "hold" and "drop" are arms to compare with. Raises ValueError for another.

    Every mode ends a stream that does not read (see Reason); only "cost" detaches.
    """

    def __init__(self, settings: PolicySettings | None = None, mode: Mode = "cost") -> None:
        if mode not in ("cost", "hold", "drop"):
            raise ValueError(f"policy mode {mode!r}: must be cost, hold or drop")
        self.settings = settings or PolicySettings()
        self.mode = mode

    def decide(
        self, stream: BehindStream, load: Load, outlook: Outlook | None = None, pressure_now: float | None = None
    ) -> Decision:
        """One action. The same inputs give the same answer.

        outlook: what is expected of the client (None: from this stream's own rate alone).
        pressure_now: smoothed, 0 to 1 (None: from ``load`` alone).
        """
        if (reason := self._end_reason(stream)) is not None:
            return self._end(stream, load, reason)
        if stream.state not in (State.PAUSED, State.SWAPPED) or not stream.holds_kv:
            return Decision(action=Action.HOLD, reason=Reason.HOLDS_NOTHING)
        if self.mode == "hold":
            return Decision(action=Action.HOLD, reason=Reason.MODE_HOLD)
        if self.mode == "drop":
            is_due = stream.state is State.PAUSED and stream.behind_s >= self.settings.release_kv_after_s
            return Decision(action=Action.DROP if is_due else Action.HOLD, reason=Reason.MODE_DROP)
        if pressure_now is None:
            pressure_now = pressure(load, self.settings)
        return self._cheapest(stream, load, outlook or own_outlook(stream), pressure_now)

    def _cheapest(self, stream: BehindStream, load: Load, outlook: Outlook, pressure_now: float) -> Decision:
        possible = costs(stream, load, outlook, pressure_now, self.settings)
        hold = possible[Action.HOLD]
        best = min(possible, key=possible.__getitem__)  # the first of equals: the least invasive
        if possible[best] > self.settings.margin * hold - self.settings.min_gain_s:
            best = Action.HOLD
        reason = Reason.CHEAPEST
        if best is Action.HOLD and pressure_now == 0:
            reason = Reason.NO_PRESSURE
        elif best is Action.DROP and stream.state is State.SWAPPED:
            reason = Reason.HOST_FULL
        # The rest is an estimate from this stream's bytes a token: a quarter more, within the room there is.
        grant = min(stream.spool_bytes_left * 5 // 4 + 1, load.spool_free_bytes) if best is Action.RUN_AHEAD else 0
        return Decision(action=best, reason=reason, costs=possible, run_ahead_bytes=grant)

    def _end_reason(self, stream: BehindStream) -> Reason | None:
        if stream.silence_s >= self.settings.max_silence(stream.tier):
            return Reason.SILENT
        is_slow = stream.drain_bytes_per_s < self.settings.min_drain_bytes_per_s
        return Reason.TOO_SLOW if is_slow and stream.behind_s >= self.settings.grace(stream.tier) else None

    def _end(self, stream: BehindStream, load: Load, reason: Reason) -> Decision:
        """Detach loses nothing, so it goes first; the backlog and the rest must fit into the spool."""
        room = stream.backlog.bytes + stream.spool_bytes_left <= load.spool_free_bytes
        may_detach = self.mode == "cost" and stream.is_resumable and room
        return Decision(action=Action.DETACH if may_detach else Action.CANCEL, reason=reason)


def own_outlook(stream: BehindStream) -> Outlook:
    """From the stream alone: it goes on at its rate, and is silent for at least as long again as it has been."""
    rate = stream.drain_bytes_per_s
    away_s = stream.resume_bytes / rate if rate > 0 else stream.behind_s
    return Outlook(chance_of_return=1.0 if rate > 0 else 0.5, away_s=max(away_s, stream.silence_s))
