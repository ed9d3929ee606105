"""The engine thread: commands between steps, token events to the driver. It waits for nobody."""

from __future__ import annotations

import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from sluiceway.core.events import FinishReason
from sluiceway.engine.protocol import Engine, EngineLoad, EngineRequest, EngineStatistics, TokenEvent

EngineCommand = Callable[[Engine], object]
_STEPS_KEPT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds, over the last steps that did something; zeros before the first."""

    mean: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    last: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    statistics: EngineStatistics
    step_time_s: StepTimes


class EnginePort(Protocol):
    """How the driver reaches the engine; neither call blocks."""

    def post(self, command: EngineCommand) -> None: ...

    def submit(self, request: EngineRequest) -> None: ...


class EngineLoop:
    """Owns the engine: nobody else calls it, but for ``encode``.

    on_tokens(events, at, load): one batch per step and the clock after it; must not block. load: None if it
    is what it was. Without a step it also comes before the loop falls asleep.
    on_death(detail): the engine raised; no step follows.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float],
        on_tokens: Callable[[list[TokenEvent], float, EngineLoad | None], None],
        on_death: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._on_tokens = on_tokens
        self._on_death = on_death
        self._commands: queue.SimpleQueue[EngineCommand | None] = queue.SimpleQueue()
        self._load: EngineLoad | None = None
        self._step_times: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, command: EngineCommand) -> None:
        """Run ``command`` on the engine thread before the next step. Never blocks."""
        self._commands.put(command)

    def submit(self, request: EngineRequest) -> None:
        """As post(); a request that the engine does not take ends with reason ERROR."""

        def submit(engine: Engine) -> None:
            try:
                engine.submit(request)
            except ValueError:
                refusal = TokenEvent(request.request_id, (), b"", FinishReason.ERROR)
                self._on_tokens([refusal], self._clock(), None)

        self.post(submit)

    def snapshot(self) -> Future[EngineSnapshot]:
        """Statistics taken between two steps; never done if the engine is dead."""
        future: Future[EngineSnapshot] = Future()
        self.post(lambda engine: future.set_result(EngineSnapshot(engine.statistics(), self._summary())))
        return future

    def stop(self, timeout_s: float) -> bool:
        """End after the step under way; False if that takes longer than ``timeout_s``."""
        self._commands.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._obey():
                started = self._clock()
                events = self._engine.step()
                ended = self._clock()
                self._step_times.append(ended - started)
                self._report(events, ended)
        except Exception:
            self._on_death(traceback.format_exc())

    def _obey(self) -> bool:
        """Run the commands that are there, waiting for one only if there is nothing to step; False: end."""
        while True:
            has_work = self._engine.has_work()
            if not has_work and self._commands.empty():
                # What the last commands did (a pause, an abort) is not followed by a step that would tell.
                self._report([], self._clock())
            try:
                command = self._commands.get(block=not has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            command(self._engine)

    def _report(self, events: list[TokenEvent], at: float) -> None:
        load = self._engine.load()
        news = None if load == self._load else load
        if events or news is not None:
            self._load = load
            self._on_tokens(events, at, news)

    def _summary(self) -> StepTimes:
        times = sorted(self._step_times)
        if not times:
            return StepTimes()
        return StepTimes(
            mean=fmean(times),
            p50=times[len(times) // 2],
            p99=times[len(times) * 99 // 100],
            last=self._step_times[-1],
        )
