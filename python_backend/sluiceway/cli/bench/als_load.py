"""What the access log costs the engine: its step time at 1,000 open streams, records on against off.

The same streams stand open in both arms: a batch that generates into windows that nobody empties, the
rest queued. Only Envoy's record interval differs: 100 ms (10,000 records a second, all handled by the
listener) against one an hour. Neither arm confirms anything, so the backend does the same work otherwise.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from sluiceway.cli.bench.harness import BenchContext, scripted
from sluiceway.cli.bench.plans import never_readers
from sluiceway.cli.bench.readers import ReaderProcess
from sluiceway.cli.bench.stats import ratio
from sluiceway.cli.envoy import EnvoyOverrides
from sluiceway.cli.stack import Stack

OPEN_STREAMS = 1000
STREAMS_A_CONNECTION = 50
STEP_S = 0.02
# No deadline of ours may end a stream while it is measured.
NO_DEADLINES = {"signal_timeout_s": 600.0, "max_silence_s": 600.0, "mode": "run_to_completion"}


BATCH_STREAMS = 32  # as shipped; the other open streams are queued


def _config() -> dict[str, Any]:
    config = scripted(STEP_S, **NO_DEADLINES)
    config["engine"]["max_batch_streams"] = BATCH_STREAMS
    config["delivery"] = {"record_timeout_s": 7200.0}
    config["policy"] = {"grace_s": [7200.0], "max_silence_s": [7200.0]}
    # Run to completion reserves spool.max_stream_bytes for each stream; here nobody has that much to read.
    config["admission"] |= {"max_buffered_bytes": 2**33}
    return config


@dataclass(slots=True)
class AlsLoad:
    """Mean step time of each window, seconds; records per second that the listener took in each."""

    with_records: list[float] = field(default_factory=list)
    without_records: list[float] = field(default_factory=list)
    records_per_s: list[float] = field(default_factory=list)
    open_streams: list[int] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return ratio(sum(self.with_records), sum(self.without_records))

    def figures(self) -> dict[str, Any]:
        return {
            "open_streams": self.open_streams,
            "records_per_s": [round(each) for each in self.records_per_s],
            "step_ms_with_records": [round(1000 * each, 4) for each in self.with_records],
            "step_ms_without_records": [round(1000 * each, 4) for each in self.without_records],
        }


def als_step_time(context: BenchContext) -> AlsLoad:
    load = AlsLoad()
    for _ in range(context.count(2, 1)):
        for flush_s, steps in ((3600.0, load.without_records), (0.1, load.with_records)):
            overrides = EnvoyOverrides(flush_interval_s=flush_s)
            label = f"als-{'on' if flush_s < 1 else 'off'}"
            with context.stack(label, _config(), envoy_overrides=overrides) as stack:
                step_s, records_per_s, open_streams = _measure(context, stack, label)
            steps.append(step_s)
            load.records_per_s.append(records_per_s)
            load.open_streams.append(open_streams)
    context.note(f"access log at {OPEN_STREAMS} open streams: step time x{load.ratio:.4f}")
    return load


def _measure(context: BenchContext, stack: Stack, label: str) -> tuple[float, float, int]:
    plans = never_readers(stack.ports.envoy, OPEN_STREAMS, tokens=50_000, a_connection=STREAMS_A_CONNECTION)
    process = ReaderProcess(plans)
    context.sleep(context.seconds(15, 12), f"{label}: opening {OPEN_STREAMS} streams")
    before, begin = stack.statistics(), time.monotonic()
    context.sleep(context.seconds(15, 8), f"{label}: measuring the step")
    after, end = stack.statistics(), time.monotonic()
    process.stop()
    records = after["delivery"]["records"] - before["delivery"]["records"]
    steps = after["engine"]["steps"] - before["engine"]["steps"]
    return (end - begin) / steps, records / (end - begin), after["totals"]["open_streams"]
