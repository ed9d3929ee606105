"""The response pump: a few threads that do what may block, one at a time per key, in the order given."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

Job = Callable[[], None]


class JobKind(StrEnum):
    SEND = "send"
    POLL = "poll"


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpStatistics:
    """blocked_now: sends that have been going on for longer than slow_send_s."""

    sends: int
    slow_sends: int
    failed_sends: int
    blocked_now: int
    cancel_polls: int
    threads: int
    waiting_keys: int


class Pump:
    """Jobs of one key never run at the same time or out of order; jobs of different keys do.

    workers: threads that are free to work. A job that hangs for longer than slow_send_s no longer
    counts as one: tend() starts a replacement, up to max_blocked of them, so one stuck send cannot hold
    up other streams. clock: monotonic seconds. on_fatal: called if a job raised (jobs handle their own
    errors; one that does not is a defect).
    """

    def __init__(
        self,
        *,
        workers: int,
        max_blocked: int,
        slow_send_s: float,
        clock: Callable[[], float],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._workers = workers
        self._max_threads = workers + max_blocked
        self._slow_send_s = slow_send_s
        self._clock = clock
        self._on_fatal = on_fatal
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._jobs: dict[str, deque[tuple[JobKind, Job]]] = {}  # a key is here while it has jobs or runs one
        self._ready: deque[str] = deque()  # keys with jobs that nobody runs
        self._running: dict[int, tuple[JobKind, float]] = {}  # thread to its job's kind and start
        self._threads: set[threading.Thread] = set()
        self._stopping = False
        self._sends = self._slow_sends = self._failed_sends = self._cancel_polls = 0

    def start(self) -> None:
        with self._lock:
            for _ in range(self._workers):
                self._add_thread()

    def submit(self, key: str, kind: JobKind, job: Job) -> None:
        """Never blocks. Jobs given after stop() are dropped."""
        with self._lock:
            if self._stopping:
                return
            waiting = self._jobs.get(key)
            if waiting is not None:
                waiting.append((kind, job))
                return
            self._jobs[key] = deque([(kind, job)])
            self._ready.append(key)
            self._work.notify()

    def tend(self) -> None:
        """Replace threads that hang in a job. Call it now and then, and while work waits."""
        with self._lock:
            if self._ready and not self._stopping:
                free = len(self._threads) - self._blocked()
                for _ in range(min(self._workers - free, self._max_threads - len(self._threads))):
                    self._add_thread()

    def count_failed_send(self) -> None:
        with self._lock:
            self._failed_sends += 1

    def statistics(self) -> PumpStatistics:
        with self._lock:
            return PumpStatistics(
                sends=self._sends,
                slow_sends=self._slow_sends,
                failed_sends=self._failed_sends,
                blocked_now=self._blocked(),
                cancel_polls=self._cancel_polls,
                threads=len(self._threads),
                waiting_keys=len(self._ready),
            )

    def stop(self, timeout_s: float) -> bool:
        """Do what was submitted, then end; False if something still hangs after ``timeout_s``."""
        with self._lock:
            self._stopping = True
            self._work.notify_all()
            threads = list(self._threads)
        deadline = self._clock() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - self._clock()))
        return not any(thread.is_alive() for thread in threads)

    def _blocked(self) -> int:
        since = self._clock() - self._slow_send_s
        return sum(started < since for _, started in self._running.values())

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work_loop, name=f"pump-{len(self._threads)}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work_loop(self) -> None:
        me = threading.current_thread()
        while (item := self._next(me)) is not None:
            key, kind, job = item
            started = self._clock()
            with self._lock:
                self._running[threading.get_ident()] = (kind, started)
            try:
                job()
            except Exception:
                self._on_fatal("a pump job failed: " + traceback.format_exc())
            self._finished(key, kind, self._clock() - started)

    def _next(self, me: threading.Thread) -> tuple[str, JobKind, Job] | None:
        """The next job, or None if this thread is to end."""
        with self._lock:
            while True:
                # Replacements leave once the threads that hung are back.
                if len(self._threads) - self._blocked() > self._workers or (self._stopping and not self._ready):
                    self._threads.discard(me)
                    self._work.notify()  # this thread may have been woken for a job
                    return None
                if self._ready:
                    key = self._ready.popleft()
                    kind, job = self._jobs[key].popleft()
                    return key, kind, job
                self._work.wait()

    def _finished(self, key: str, kind: JobKind, took_s: float) -> None:
        with self._lock:
            self._running.pop(threading.get_ident(), None)
            if kind is JobKind.SEND:
                self._sends += 1
                self._slow_sends += took_s > self._slow_send_s
            else:
                self._cancel_polls += 1
            if self._jobs[key]:
                self._ready.append(key)
                self._work.notify()
            else:
                del self._jobs[key]
