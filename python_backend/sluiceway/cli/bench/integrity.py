"""``bench integrity``: slow readers get the reference text and token ids, pauses and merged frames or not."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluiceway.cli.bench import plans
from sluiceway.cli.bench.departures import finished_entries
from sluiceway.cli.bench.harness import BenchContext, ScenarioResult
from sluiceway.cli.bench.promise import Promise
from sluiceway.cli.bench.readers import (
    OVER_HTTP1,
    Alternate,
    Bursts,
    Dribble,
    Normal,
    Rate,
    ReaderLoop,
    Reading,
    ReadingPolicy,
    StopAfter,
    Stream,
    StreamRequest,
)
from sluiceway.cli.bench.reference import Answer, scripted, uninterrupted
from sluiceway.cli.setup import REPOSITORY
from sluiceway.cli.stack import Stack
from sluiceway.runtime.config import model_dir
from sluiceway.runtime.config_file import load_config
from sluiceway.runtime.engines import build_engine

MODEL_SETTINGS = REPOSITORY / "model_repository" / "llm" / "sluiceway.yaml"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
SMALL_WATERMARKS = {
    "window": {"bytes": 4096, "tokens": 64, "frames": 16},
    "high": {"bytes": 4096, "tokens": 48, "frames": 48},
    "low": {"bytes": 1024, "tokens": 12, "frames": 12},
    "merge_frames": 4,
    "max_frame_bytes": 1024,
}
SMALLER_WATERMARKS = {
    **SMALL_WATERMARKS,
    "high": {"bytes": 4096, "tokens": 20, "frames": 20},
    "low": {"bytes": 1024, "tokens": 4, "frames": 4},
}
DROP_SOON = {"mode": "drop", "release_kv_after_s": 0.3}  # so that many are recomputed
SCRIPTED: dict[str, Any] = {
    "engine": {"kind": "scripted", "step_s": 0.01, "script": "unicode", "max_batch_streams": 64},
    "flow_control": SMALL_WATERMARKS,
    "policy": DROP_SOON,
}
TORCH: dict[str, Any] = {"engine": {"kind": "torch"}, "flow_control": SMALLER_WATERMARKS, "policy": DROP_SOON}
PROMPTS = (
    "Tell a short story about a river, in plain words.",
    "日本語で、川について短い文を書いてください。",
    "A family 👨‍👩‍👧‍👦 and a flag 🏳️‍🌈: what do you see?",
    "Why does a kettle sing before it boils?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """A kind of reader. ``must_pause``: at least once, or the run proves nothing."""

    name: str
    policy: ReadingPolicy
    window: int = 4096
    must_pause: bool = False
    stops_first_s: float = 0.0


OTHERS = (
    Habit(name="normal", policy=Normal(), window=65_535),
    Habit(name="1-byte segments", policy=Dribble(2000)),
    Habit(name="64 KiB bursts", policy=Bursts(65_536, max_wait_s=3), window=65_535),
)


def scripted_habits(protocol: str) -> tuple[Habit, ...]:
    # Over HTTP/1.1 a client's kernel takes 8 KiB before anybody can see that the program behind it stopped.
    stop_s = 6.0 if protocol in OVER_HTTP1 else 2.0
    return (
        *OTHERS,
        Habit(name="2 KB/s", policy=Rate(2000), must_pause=True),
        Habit(name=f"reads 0.3 s, stops {stop_s:g} s", policy=Alternate(0.3, stop_s), must_pause=True),
        Habit(name="reads nothing until paused", policy=Normal(), must_pause=True, stops_first_s=30.0),
    )


# The real model makes a few tokens a second a stream here, so only a long stop is sure to pause it.
TORCH_HABITS = (
    *OTHERS,
    Habit(name="2 KB/s", policy=Rate(2000)),
    Habit(name="reads 0.3 s, stops 2 s", policy=Alternate(0.3, 2.0)),
    Habit(name="reads nothing until paused", policy=Normal(), must_pause=True, stops_first_s=60.0),
)


def run(context: BenchContext) -> ScenarioResult:
    tokens = context.count(1500, 1000 if context.protocol in OVER_HTTP1 else 500)
    script = _arm(context, "scripted", SCRIPTED, scripted_habits(context.protocol), tokens, clients=context.count(4, 2))
    torch = _arm(context, "torch", TORCH, TORCH_HABITS, context.count(128, 96), clients=1)
    arms = {"scripted": script, "torch": torch}
    rows = [row for arm in arms.values() for row in arm["streams"]]
    unpaused = sum(row["pauses"] == 0 for row in rows if row["must_pause"])
    promises = [
        Promise.exactly("texts_differing", sum(row["text_differs"] for row in rows), 0, "streams"),
        Promise.exactly("token_ids_differing", sum(row["token_ids_differ"] for row in rows), 0, "streams"),
        Promise.exactly(
            "replacement_chars_added", sum(row["replacement_chars_added"] for row in rows), 0, "characters"
        ),
        Promise.exactly("frames_out_of_order", sum(row["frames_out_of_order"] for row in rows), 0, "streams"),
        Promise.exactly("slow_readers_never_paused", unpaused, 0, "streams"),
        Promise.at_least("recomputed_streams", sum(row["kv_releases"] > 0 for row in rows), 1, "streams"),
    ]
    settings = {
        "scripted": SCRIPTED,
        "torch": TORCH,
        "max_tokens": tokens,
        "prompts": PROMPTS,
        "protocol": context.protocol,
    }
    return ScenarioResult(settings=settings, arms=arms, promises=promises)


def _arm(
    context: BenchContext, name: str, config: Mapping[str, Any], habits: Sequence[Habit], tokens: int, clients: int
) -> dict[str, Any]:
    """``clients`` readers of each habit at once, each with a prompt of its own turn."""
    context.note(f"{name}: the reference answers, in this process, uninterrupted")
    references = dict(zip(PROMPTS, _references(config, tokens), strict=True))
    readers = [habit for _ in range(clients) for habit in habits]
    with context.stack(name, config) as stack, ReaderLoop() as loop:
        context.note(f"{name}: {len(readers)} readers of {len(habits)} habits, {tokens} tokens each")
        began = time.monotonic()
        requests = [
            StreamRequest(
                prompt=PROMPTS[number % len(PROMPTS)],
                max_tokens=tokens,
                sampling={"temperature": 0, "ignore_eos": True},
                client_id=f"{name}-{number}",
            )
            for number in range(len(readers))
        ]
        streams = [
            _open(loop, stack, habit, request, context.protocol)
            for habit, request in zip(readers, requests, strict=True)
        ]
        _let_stopped_ones_read(stack, loop, readers, streams)
        _wait(streams, timeout_s=240)
        took = time.monotonic() - began
        entries = finished_entries(stack, [request.client_id for request in requests])
    rows = [
        _compare(habit, stream.reading, references[request.prompt], entries[request.client_id])
        for habit, stream, request in zip(readers, streams, requests, strict=True)
    ]
    return {"took_s": round(took, 1), "tokens_asked": tokens, "streams": rows}


def _references(config: Mapping[str, Any], tokens: int) -> list[Answer]:
    if config["engine"]["kind"] == "scripted":
        return scripted(config, PROMPTS, tokens)
    settings = load_config(MODEL_SETTINGS)
    where = model_dir(settings, MODEL_SETTINGS, os.environ.get("SLUICEWAY_MODEL_DIR"))
    return uninterrupted(build_engine(settings.engine, where), PROMPTS, tokens)


def _open(loop: ReaderLoop, stack: Stack, habit: Habit, request: StreamRequest, protocol: str) -> Stream:
    connection = loop.connect(plans.connection(stack.ports.envoy, habit.window, protocol))
    return loop.open(connection, request, StopAfter(0) if habit.stops_first_s else habit.policy)


def _let_stopped_ones_read(stack: Stack, loop: ReaderLoop, habits: Sequence[Habit], streams: Sequence[Stream]) -> None:
    """Once they were stopped for their time, or (sooner) lost their KV to a pause."""
    stopped = {
        stream.reading.client_id: (habit, stream)
        for habit, stream in zip(habits, streams, strict=True)
        if habit.stops_first_s
    }
    deadline = time.monotonic() + max(habit.stops_first_s for habit, _ in stopped.values())
    while time.monotonic() < deadline:
        entries = [entry for entry in stack.statistics()["streams"] if entry["client_id"] in stopped]
        if len(entries) == len(stopped) and all(entry["state"] == "preempted" for entry in entries):
            break
        time.sleep(0.1)
    for habit, stream in stopped.values():
        loop.set_policy(stream, habit.policy)


def _wait(streams: Sequence[Stream], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    for stream in streams:
        if not stream.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError(f"{stream.reading.client_id} got no end within {timeout_s:g} s")


def _compare(habit: Habit, reading: Reading, reference: Answer, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "client_id": reading.client_id,
        "habit": habit.name,
        "must_pause": habit.must_pause,
        "tokens": len(reading.token_ids),
        "frames": len(reading.frames),
        "data_frames": reading.data_frames,
        "finish_reason": reading.finish_reason,
        "error": reading.error,
        "text_differs": reading.text != reference.text,
        "token_ids_differ": tuple(reading.token_ids) != reference.token_ids,
        "replacement_chars_added": max(0, reading.text.count(REPLACEMENT) - reference.text.count(REPLACEMENT)),
        "frames_out_of_order": not _in_order(reading),
        "pauses": entry["pauses"],
        "kv_releases": entry["kv_releases"],
    }


def _in_order(reading: Reading) -> bool:
    """Sequence numbers 0, 1, 2, ...; every frame begins at the token after the last one's."""
    tokens = 0
    for number, ((sequence, first), count) in enumerate(zip(reading.frames, reading.token_counts, strict=True)):
        if (sequence, first) != (number, tokens):
            return False
        tokens += count
    return tokens == len(reading.token_ids)
