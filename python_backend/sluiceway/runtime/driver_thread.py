"""The driver's thread: one inbox, one clock, one turn for all that is there."""

from __future__ import annotations

import contextlib
import queue
import threading
import traceback
from collections.abc import Callable

from sluiceway.runtime.driver import Driver
from sluiceway.runtime.messages import Message

# Also without news: stuck pump threads are replaced and listener restarts are seen this often.
_LONGEST_SLEEP_S = 0.25


class Inbox:
    """post() never blocks. What is in here is bounded by what is open: the engine steps only streams that
    run, the pump answers each frame once, records replace each other in the listener.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def post(self, message: Message) -> None:
        self._queue.put(message)

    def close(self) -> None:
        self._queue.put(None)

    def take(self, timeout_s: float) -> list[Message | None]:
        """All that is there, waiting for the first up to ``timeout_s``; None: closed."""
        messages: list[Message | None] = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait())
            while True:
                messages.append(self._queue.get_nowait())
        return messages


class DriverThread:
    """on_death(detail): the driver raised; nothing will be sent or ended any more."""

    def __init__(
        self,
        driver: Driver,
        inbox: Inbox,
        *,
        clock: Callable[[], float],
        tend: Callable[[], None],
        on_death: Callable[[str], None],
    ) -> None:
        self._driver = driver
        self._inbox = inbox
        self._clock = clock
        self._tend = tend
        self._on_death = on_death
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End after what is in the inbox; False if that takes longer than ``timeout_s``."""
        self._inbox.close()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while True:
                deadline = self._driver.next_deadline()
                sleep_s = _LONGEST_SLEEP_S
                if deadline is not None:
                    sleep_s = min(sleep_s, max(0.0, deadline - self._clock()))
                messages = self._inbox.take(sleep_s)
                self._driver.turn((message for message in messages if message is not None), self._clock())
                self._tend()
                if None in messages:
                    return
        except Exception:
            self._on_death(traceback.format_exc())
