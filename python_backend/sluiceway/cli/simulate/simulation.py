"""One arm of a simulation: requests arrive, the machine steps, the core decides, clients read.

The core, its window and the scheduler are the ones that serve; clock, clients and the price of a step are
made up. What is approximated, so that thousands of streams take seconds:

- tokens reach the core in lumps: of a normal reader _NORMAL_LUMP_TOKENS; of a slow one what a record's time
  brings, at least the profile's lump_tokens, and _LARGEST_LUMP_TOKENS where nothing is ever paused;
- such a lump is one frame, a slow reader's padded to the wire bytes that a frame for each token would have had;
- a normal reader's lump is sent, forwarded, delivered and known to be so at once;
- Envoy's records come for a stream only when they confirm a frame, at the moment that they would have come,
  and the core hears that sends returned when a few have, or the last one.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from sluiceway.cli.simulate.arms import Arm
from sluiceway.cli.simulate.driver import Driver
from sluiceway.cli.simulate.figures import Outcome
from sluiceway.cli.simulate.machine import Machine
from sluiceway.cli.simulate.profile import Profile
from sluiceway.cli.simulate.trace import Arrival
from sluiceway.core.limits import Limits

_LARGEST_LUMP_TOKENS = 32  # padded to 32 frames' bytes it fits one frame; far below the low watermark
_NORMAL_LUMP_TOKENS = 64  # not above the low watermark, so a reader that keeps up stays below it
_SAMPLE_S = 0.5
_LONGEST_AFTER_LAST_ARRIVAL_S = 3600.0  # for what never ends, in an arm that can get stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What happened. generated: samples (time, tokens by then). commands: to the engine, by name. decisions:
    by action and reason. The rest as in Driver. Times in simulated seconds, but for review_s: real ones.
    """

    arm: str
    outcomes: list[Outcome]
    ended_at: float
    generated: list[tuple[float, int]]
    steps: int
    recomputed_tokens: int
    swap_outs: int
    swap_ins: int
    displacements: int
    peak_buffered_bytes: int
    peak_granted_bytes: int
    peak_behind: int
    commands: dict[str, int]
    decisions: dict[tuple[str, str], int]
    review_s: list[float]


class Simulation:
    """run() once. trace: in order of arrival."""

    def __init__(self, arm: Arm, profile: Profile, trace: Seq[Arrival], limits: Limits | None = None) -> None:
        self._arm = arm
        self._profile = profile
        self._trace = trace
        self._machine = Machine(profile, arm)
        self._driver = Driver(arm, profile, self._machine, arm.limits(limits or Limits()))
        self._now = 0.0
        self._generated: list[tuple[float, int]] = [(0.0, 0)]

    def run(self) -> Result:
        trace, driver, scheduler = self._trace, self._driver, self._machine.scheduler
        stop_at = trace[-1].arrival_s + _LONGEST_AFTER_LAST_ARRIVAL_S
        arrived = 0
        while self._now <= stop_at:
            while arrived < len(trace) and trace[arrived].arrival_s <= self._now:
                driver.arrive(arrived, trace[arrived])
                arrived += 1
            driver.turn(self._now)
            if scheduler.has_work() and self._step():
                continue
            upcoming = [trace[arrived].arrival_s] if arrived < len(trace) else []
            if (deadline := driver.next_deadline()) is not None:
                upcoming.append(deadline)
            if not upcoming or min(upcoming) > stop_at:
                break
            self._now = max(self._now, min(upcoming))
        self._generated.append((self._now, self._machine.generated_tokens))
        return Result(
            arm=self._arm.name,
            outcomes=[stream.outcome() for stream in driver.streams.values()],
            ended_at=self._now,
            generated=self._generated,
            steps=self._machine.steps,
            recomputed_tokens=scheduler.recomputed_tokens,
            swap_outs=scheduler.swap_outs,
            swap_ins=scheduler.swap_ins,
            displacements=scheduler.displacements,
            peak_buffered_bytes=driver.peak_buffered_bytes,
            peak_granted_bytes=driver.peak_granted_bytes,
            peak_behind=driver.peak_behind,
            commands=dict(driver.commands),
            decisions=dict(driver.decisions),
            review_s=driver.review_s,
        )

    def _step(self) -> bool:
        """One step of the machine; False if nothing could be computed."""
        machine, driver = self._machine, self._driver
        sampled = machine.step()
        if machine.step_s == 0.0:
            return False
        self._now += machine.step_s
        now, streams = self._now, driver.streams
        lump = _LARGEST_LUMP_TOKENS
        if self._arm.pauses:
            lump = min(lump, max(self._profile.lump_tokens, round(self._profile.record_s / machine.step_s)))
        for sequence in sampled:
            stream = streams[sequence.request.request_id]
            stream.pending += 1
            stream.tokens_left -= 1
            if stream.first_token_at is None:
                stream.first_token_at = now
                driver.tell(stream, now)
            if not stream.tokens_left:
                machine.scheduler.remove(stream.request_id)
                driver.finish(stream, now)
            elif stream.pending >= (_NORMAL_LUMP_TOKENS if stream.is_normal else lump):
                driver.tell(stream, now)
        if now - self._generated[-1][0] >= _SAMPLE_S:
            self._generated.append((now, machine.generated_tokens))
        return True
