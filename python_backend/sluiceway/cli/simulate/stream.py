"""One simulated request: the core's machine for it, its window, its client, its sequence in the scheduler."""

from __future__ import annotations

from sluiceway.cli.simulate.client import Client
from sluiceway.cli.simulate.figures import Outcome
from sluiceway.cli.simulate.trace import Arrival
from sluiceway.core.events import FinishReason
from sluiceway.core.sender import BoundedSender
from sluiceway.core.window import DeliveryWindow
from sluiceway.engine.sequence import Sequence

_ROUNDING_S = 1e-6


class Stream:
    """pending: tokens that the engine made and the core has not been told of. is_gone: the client left before
    it had everything. Times in seconds of the simulation.
    """

    __slots__ = (
        "arrival", "backlog_bytes", "client", "deadline_at", "finish_reason", "first_token_at",
        "granted_bytes", "is_abort_due", "is_behind", "is_gone", "is_normal", "pending", "record_at",
        "request_id", "sender", "sequence", "tokens_left", "unsent_frames", "window",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        arrival: Arrival,
        sequence: Sequence,
        sender: BoundedSender,
        window: DeliveryWindow,
        client: Client,
    ) -> None:
        self.request_id = request_id
        self.arrival = arrival
        self.is_normal = not arrival.is_slow
        self.sequence = sequence
        self.sender: BoundedSender | None = sender  # None once it is closed
        self.window = window
        self.client = client
        self.pending = 0
        self.first_token_at: float | None = None
        self.finish_reason: FinishReason | None = None
        self.is_gone = False
        self.is_abort_due = False  # its end in the engine has to be told to the core
        self.is_behind = False  # the reviews know of it
        self.granted_bytes = 0  # to run ahead with
        self.unsent_frames = 0  # handed out, and the core was not told that send() returned
        self.tokens_left = arrival.output_tokens
        self.record_at: float | None = None  # the next record that tells something
        self.deadline_at: float | None = None  # the earliest that is in the queue of events
        self.backlog_bytes = 0

    def outcome(self) -> Outcome:
        arrival, client = self.arrival, self.client
        if self.sender is None and not self.is_gone and (end_at := client.end_at()) is not None:
            client.advance(end_at + _ROUNDING_S)  # all of it is in Envoy, from where it is read on without us
        return Outcome(
            request_id=self.request_id,
            is_slow=arrival.is_slow,
            arrived_at=arrival.arrival_s,
            first_token_at=self.first_token_at,
            finished_at=client.got_all_at,
            asked_tokens=arrival.output_tokens,
            generated_tokens=self.sequence.generated,
            delivered_tokens=client.delivered_tokens,
            left_at=arrival.arrival_s + (arrival.leaves_after_s or 0.0) if self.is_gone else None,
            finish_reason=self.finish_reason.value if self.finish_reason is not None else "",
            tenant=arrival.tenant,
        )
