"""What the policy is told about one stream; the driver and the simulator say it the same way."""

from __future__ import annotations

from sluiceway.core.decision import BehindStream
from sluiceway.core.limits import Limits, Size
from sluiceway.core.sender import BoundedSender
from sluiceway.core.states import State

_BYTES_PER_TOKEN = 4.0


def describe(
    sender: BoundedSender,
    limits: Limits,
    now: float,
    *,
    prompt_tokens: int,
    max_tokens: int,
    kv_block_tokens: int,
    tenant: str = "",
    tier: int = 0,
) -> BehindStream | None:
    """None if the stream is not behind. kv_block_tokens 0: it holds no KV (its tokens come from the spool).

    Blocks follow from the state and the tokens: asking the engine would need its thread. Blocks that the
    scheduler took from a paused stream meanwhile still count as held.
    """
    if not sender.is_behind:
        return None
    # Not from statistics(): this is done for dozens of streams in an engine step.
    state, produced, backlog, reader = sender.state, sender.produced, sender.backlog, sender.reader
    generated = produced.tokens
    kv_tokens = prompt_tokens + generated
    blocks = -(-kv_tokens // kv_block_tokens) if kv_block_tokens else 0
    tokens_left = 0 if state is State.DRAINING else max(0, max_tokens - generated)
    return BehindStream(
        request_id=sender.request_id,
        state=state,
        backlog=backlog,
        behind_s=reader.behind_s(now),
        silence_s=reader.silence_s(now),
        drain_bytes_per_s=reader.drain_bytes_per_s(now),
        resume_bytes=_resume_bytes(backlog, limits),
        tokens_left=tokens_left,
        kv_blocks=blocks if state is State.PAUSED else 0,
        host_blocks=blocks if state is State.SWAPPED else 0,
        kv_tokens=kv_tokens if kv_block_tokens else 0,
        spool_bytes_left=round(tokens_left * _text_bytes_per_token(produced, limits)),
        is_resumable=sender.is_resumable,
        tenant=tenant,
        tier=tier,
    )


def _resume_bytes(backlog: Size, limits: Limits) -> int:
    """How much must be delivered until every unit is at low, as if the backlog left evenly.

    One that was paused for plenty unread needs less, but some: from high_s down to low_s.
    """
    _, low = limits.marks
    cushion = limits.cushion if limits.pausing else None
    shares = [0.0 if cushion is None else 1 - cushion.low_s / cushion.high_s]
    shares += [
        1 - below / have
        for have, below in ((backlog.bytes, low.bytes), (backlog.tokens, low.tokens), (backlog.frames, low.frames))
        if have > below
    ]
    return round(backlog.bytes * max(shares))


def _text_bytes_per_token(produced: Size, limits: Limits) -> float:
    """Without the frames' overhead: what waits is merged into few of them. Before the first token, a guess."""
    text_bytes = produced.bytes - produced.frames * limits.frame_overhead_bytes
    return text_bytes / produced.tokens if produced.tokens else _BYTES_PER_TOKEN
