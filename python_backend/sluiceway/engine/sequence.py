"""One request as the scheduler sees it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from sluiceway.engine.protocol import EngineRequest

if TYPE_CHECKING:
    from sluiceway.engine.swap import Transfer
    from sluiceway.engine.waiting_queue import Lane


class SequenceState(StrEnum):
    """PREEMPTED: its KV was dropped, its tokens were kept. SWAPPED: its KV lies in host memory. Either is
    queued or paused.
    """

    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    PAUSED = "paused"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"


class Sequence:
    """Tokens, their KV blocks and how far the KV cache reaches.

    token_ids: prompt, then everything generated. computed: how many leading tokens have KV.
    blocks: block ids in order; the KV of position p lies in block ``blocks[p // block_tokens]``
    at offset ``p % block_tokens``. host_blocks: the same in host memory, while swapped; both only while
    ``transfer`` copies between them. arrival: running number of the submit.
    """

    __slots__ = (
        "admitted_at", "arrival", "blocks", "computed", "ever_computed", "has_lagged", "host_blocks", "is_aged",
        "is_paused", "lane", "prompt_length", "queued_at", "recomputes", "request", "state", "ticket", "token_ids",
        "transfer", "waits_since", "weight",
    )  # fmt: skip

    def __init__(self, *, request: EngineRequest, arrival: int, token_ids: list[int]) -> None:
        self.request = request
        self.arrival = arrival
        self.token_ids = token_ids
        self.prompt_length = len(token_ids)
        self.blocks: list[int] = []
        self.host_blocks: list[int] = []
        self.computed = 0
        self.ever_computed = 0
        self.state = SequenceState.WAITING
        self.is_paused = False
        self.weight = 1.0
        self.has_lagged = False  # whether its client ever fell behind, as far as the order heeds it
        self.transfer: Transfer | None = None
        self.recomputes = False  # whether its prefill under way began as one of lost KV
        self.admitted_at = 0  # scheduler step
        # The waiting queue's; ticket is None when not queued.
        self.ticket: int | None = None
        self.lane: Lane | None = None
        self.queued_at = 0
        self.waits_since: int | None = None  # the step since when its client has waited for a token
        self.is_aged = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def generated(self) -> int:
        return len(self.token_ids) - self.prompt_length

    @property
    def is_decoding(self) -> bool:
        """Only the newest generated token has no KV yet."""
        return self.computed == len(self.token_ids) - 1 and self.generated > 0

    def append(self, token_id: int) -> None:
        """Add a sampled token. Call after Scheduler.commit()."""
        self.token_ids.append(token_id)
