"""One request as the scheduler sees it."""

from __future__ import annotations

from enum import StrEnum

from sluiceway.engine.protocol import EngineRequest


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
    at offset ``p % block_tokens``. arrival: running number of the submit.
    """

    __slots__ = (
        "arrival", "blocks", "computed", "ever_computed", "host_blocks", "is_paused",
        "prompt_length", "request", "state", "ticket", "token_ids", "weight",
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
        self.ticket: int | None = None  # the waiting queue's; None when not queued

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def generated(self) -> int:
        return len(self.token_ids) - self.prompt_length

    @property
    def is_decoding(self) -> bool:
        """Only the newest generated token has no KV yet."""
        return self.generated > 0 and self.computed == len(self.token_ids) - 1

    def append(self, token_id: int) -> None:
        """Add a sampled token. Call after Scheduler.commit()."""
        self.token_ids.append(token_id)
