"""The seam between the runtime and any engine.

Every method except ``encode`` is called on the engine thread only. ``encode`` may be called from any
thread. No method may block on anything but computation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from sluiceway.core.events import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Names as in vLLM's sampling_parameters. temperature 0 is greedy; top_k 0 and top_p 1.0 are off."""

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """``request_id`` is unique in the process; ``prompt_token_ids`` is non-empty and fits the context."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens of one request from one step.

    text: raw bytes these tokens add (stop strings removed; may end inside a UTF-8 sequence; may be
    empty while a possible stop string is held back). finish_reason: set on the request's last event,
    by which time its KV blocks are free. An aborted request's last event has reason CANCELLED.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: bytes
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStatistics:
    """``state``: waiting, prefill, running, paused, preempted, swapped. ``kv_blocks``: blocks held on the device
    now, ``host_blocks``: in host memory (while a copy is under way: both).
    """

    state: str
    kv_blocks: int
    generated_tokens: int
    host_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """A snapshot, taken on the engine thread between steps. Times in seconds, monotonic counters.

    swap_outs, swap_ins: completed copies of a request's KV. displacements: a request with plenty unread
    that gave up its place to one whose client was waiting.
    """

    kv_blocks_total: int
    kv_blocks_free: int
    running: int
    waiting: int
    paused: int
    preempted: int
    steps: int
    generated_tokens: int
    aborts: int
    recomputed_tokens: int
    requests: dict[str, RequestStatistics]
    host_blocks_total: int = 0
    host_blocks_free: int = 0
    swapped: int = 0
    swap_outs: int = 0
    swap_ins: int = 0
    displacements: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What the policy needs to know, O(1) to take after each step. Rates: measured at start-up, then tracked
    (moving averages); 0 while unknown. batch_streams, batch_free: places in the batch, taken and free.
    waiting: requests whose client waits and that could not be admitted (those with plenty unread do not
    count). oldest_waiting: of those that never ran, the one submitted first.
    """

    kv_blocks_total: int
    kv_blocks_free: int
    host_blocks_free: int
    batch_streams: int
    batch_free: int
    waiting: int
    oldest_waiting: str | None
    step_s: float
    prefill_tokens_per_s: float
    swap_blocks_per_s: float


class Engine(Protocol):
    """Continuous batching over any number of requests.

    Unknown ids are ignored by pause, resume, set_weight, release_kv, swap_out and abort (the request may
    just have ended); abort answers whether it ended one. release_kv and swap_out act only on a paused
    request; release_kv also frees its host blocks. swap_out does nothing if the host pool has no room.
    set_weight: 1.0 for a client that waits for the next token, down to 1/16 for one with plenty unread;
    while nobody waits it changes nothing.
    """

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus answer, in tokens."""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` as the model wants them (special tokens added as it does)."""

    def submit(self, request: EngineRequest) -> None: ...

    def pause(self, request_id: str) -> None: ...

    def resume(self, request_id: str) -> None: ...

    def set_weight(self, request_id: str, weight: float) -> None: ...

    def release_kv(self, request_id: str) -> None: ...

    def swap_out(self, request_id: str) -> None: ...

    def abort(self, request_id: str) -> bool: ...

    def has_work(self) -> bool:
        """False when step() would do nothing: the loop may sleep until the next command."""

    def step(self) -> list[TokenEvent]:
        """One scheduler step: at most one prefill chunk budget and one token for each running request."""

    def load(self) -> EngineLoad: ...

    def statistics(self) -> EngineStatistics: ...
