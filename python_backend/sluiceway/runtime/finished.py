"""The streams that ended lately, for benches and operators: GET /finished."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from sluiceway.core.statistics import SenderStatistics
from sluiceway.runtime.stream import Stream

MAX_KEPT = 8192


class FinishedRing:
    """The last ``max_kept`` ended streams, numbered from 1. Written by the driver, read by anybody."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=max_kept)
        self._count = 0
        self.reasons: Counter[str] = Counter()

    def add(self, stream: Stream, statistics: SenderStatistics, now: float) -> None:
        self._count += 1
        reason = "" if statistics.finish_reason is None else statistics.finish_reason.value
        self.reasons[reason] += 1
        self._entries.append(
            {
                "n": self._count,
                "client_id": stream.request.client_id,
                "request_id": stream.request_id,
                "rpc_id": stream.request.rpc_id,
                "finish_reason": reason,
                "cause": statistics.cause,
                "produced_tokens": stream.produced_tokens,
                "t_accepted": stream.accepted_at,
                "t_first_token": stream.first_token_at,
                "t_client_gone": stream.client_gone_at,
                "t_kv_free": stream.kv_free_at,
                "t_closed": now,
                "state_when_gone": stream.state_when_gone,
                "token_times": list(stream.token_times),
                "pauses": statistics.pauses,
                "paused_s": statistics.paused_s,
                "kv_releases": statistics.kv_releases,
                "swaps": statistics.swaps,
                "run_aheads": statistics.run_aheads,
                "delivered_tokens": statistics.delivered.tokens,
                "spooled_tokens": statistics.spooled.tokens,
                "peak_backlog_bytes": statistics.peak_backlog_bytes,
            }
        )

    def since(self, n: int) -> dict[str, Any]:
        """Entries numbered above ``n``; ``next`` is what to ask for the next time."""
        entries = list(self._entries)
        first = entries[0]["n"] if entries else 1
        return {"next": entries[-1]["n"] if entries else n, "finished": entries[max(0, n - first + 1) :]}
