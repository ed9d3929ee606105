"""A client on ``sluiceway.client``: each frame is acknowledged when the program asks for the next."""

from __future__ import annotations

import threading
import time

from sluiceway.cli.bench.readers.reading import Stream
from sluiceway.cli.bench.readers.wire import Message, StreamRequest
from sluiceway.client.frames import GenerationError
from sluiceway.client.sync import Client


class AckReader(Stream):
    """One generation in a thread of its own, which the program can stop reading."""

    def __init__(self, target: str, request: StreamRequest) -> None:
        super().__init__(request.client_id)
        self._client = Client(target)
        self._request = request
        self._reads = threading.Event()
        self._reads.set()
        self._thread = threading.Thread(target=self._read, name="ack-reader", daemon=True)

    def start(self) -> AckReader:
        self._thread.start()
        return self

    def stop_reading(self) -> float:
        """Ask for no further frame; returns the time."""
        self._reads.clear()
        return time.monotonic()

    def leave(self) -> float:
        """Cancel the generation and close the connection; returns the time."""
        self.reading.left = self.reading.left or "cancel"
        at = time.monotonic()
        self._reads.set()
        self._thread.join(5)
        self._client.close()
        return at

    def _read(self) -> None:
        reading, request = self.reading, self._request
        sampling = {"max_tokens": request.max_tokens, **request.sampling}
        try:
            with self._client.generate(request.prompt, sampling=sampling, resumable=False) as generation:
                for frame in generation:
                    message = Message(
                        text=frame.text,
                        token_ids=frame.token_ids,
                        frame=(frame.sequence, frame.first_token_index),
                        finish_reason=frame.finish_reason or "",
                    )
                    reading.add(message, time.monotonic())
                    self._reads.wait()
                    if reading.left:
                        break
        except GenerationError as problem:
            reading.error = str(problem)
        finally:
            self.finish(time.monotonic())
