"""What GET /statistics answers. The driver takes snapshots; turning them into JSON is the asker's work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sluiceway.core.registry import RegistryTotals
from sluiceway.core.statistics import SenderStatistics
from sluiceway.delivery.source import DeliveryStatistics
from sluiceway.runtime.engine_loop import EngineSnapshot
from sluiceway.runtime.pump import PumpStatistics


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    client_id: str
    rpc_id: str | None
    engine_id: str
    produced_tokens: int
    sender: SenderStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSnapshot:
    """``disconnects``: streams whose client left while they were open. ``aborts``: engine aborts we asked for.
    ``decisions``: of the policy, by action and reason. ``behind``: streams it looks at now. ``degraded``:
    answers that were replaced by a short one.
    """

    now: float
    streams: tuple[StreamSnapshot, ...]
    totals: RegistryTotals
    refused: int
    finished: Mapping[str, int]
    disconnects: int
    aborts: int
    behind: int
    degraded: int
    decisions: Mapping[str, Mapping[str, int]]
    spool: Mapping[str, Any]
    rpcs: int
    is_draining: bool


_LEVELS = ("produced", "sent", "forwarded", "delivered", "consumed", "spooled", "backlog")


def as_json(
    driver: DriverSnapshot, engine: EngineSnapshot, delivery: DeliveryStatistics, pump: PumpStatistics
) -> dict[str, Any]:
    """The whole page; sizes in bytes, tokens and frames, times in seconds of time.monotonic()."""
    engine_fields = asdict(engine.statistics)
    requests = engine_fields.pop("requests")
    return {
        "now": driver.now,
        "engine": engine_fields | {"step_time_s": asdict(engine.step_time_s)},
        "streams": [_stream(stream, requests.get(stream.engine_id)) for stream in driver.streams],
        "totals": {
            "accepted": driver.totals.accepted,
            "refused": driver.refused + driver.totals.refused,
            "finished": dict(driver.finished),
            "disconnects": driver.disconnects,
            "aborts": driver.aborts,
            "open_streams": driver.totals.open_streams,
            "peak_open_streams": driver.totals.peak_open_streams,
            "buffered_bytes": driver.totals.buffered_bytes,
            "reserved_bytes": driver.totals.reserved_bytes,
            "rpcs": driver.rpcs,
            "behind": driver.behind,
            "degraded": driver.degraded,
            "draining": driver.is_draining,
        },
        "decisions": driver.decisions,
        "spool": driver.spool,
        "delivery": asdict(delivery),
        "pump": asdict(pump),
    }


def levels_json(sender: SenderStatistics) -> dict[str, Any]:
    """What a client may know of its own stream; sizes in bytes, tokens and frames, times in seconds."""
    return {
        "state": sender.state.value,
        "is_paused": sender.state.is_out_of_batch,
        **{level: asdict(getattr(sender, level)) for level in _LEVELS},
        "has_signal": sender.has_signal,
        "pauses": sender.pauses,
        "kv_releases": sender.kv_releases,
        "paused_s": sender.paused_s,
        "behind_s": sender.behind_s,
        "silence_s": sender.silence_s,
        "age_s": sender.age_s,
    }


def _stream(stream: StreamSnapshot, request: Mapping[str, Any] | None) -> dict[str, Any]:
    sender = stream.sender
    return {
        "request_id": sender.request_id,
        "client_id": stream.client_id,
        "rpc_id": stream.rpc_id,
        "state": sender.state.value,
        "finish_reason": None if sender.finish_reason is None else sender.finish_reason.value,
        **{level: asdict(getattr(sender, level)) for level in _LEVELS},
        # Of a whole answer, the sender knows nothing before it leaves.
        "produced_tokens": stream.produced_tokens,
        "peak_backlog_bytes": sender.peak_backlog_bytes,
        "has_signal": sender.has_signal,
        "kv_blocks": 0 if request is None else request["kv_blocks"],
        "host_blocks": 0 if request is None else request["host_blocks"],
        "engine_state": None if request is None else request["state"],
        "pauses": sender.pauses,
        "kv_releases": sender.kv_releases,
        "swaps": sender.swaps,
        "run_aheads": sender.run_aheads,
        "run_ahead_bytes": sender.run_ahead_bytes,
        "paused_s": sender.paused_s,
        "behind_s": sender.behind_s,
        "silence_s": sender.silence_s,
        "drain_bytes_per_s": sender.drain_bytes_per_s,
        "weight": sender.weight,
        "degraded": sender.is_degraded,
        "age_s": sender.age_s,
    }
