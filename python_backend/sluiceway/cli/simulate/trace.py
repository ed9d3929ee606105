"""Who asks for what, when, and how they read. One trace drives the simulator and ``bench policy``."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

READERS = "normal, never, rate:BYTES_PER_S, stop:BYTES"
ARRIVALS = ("uniform", "poisson", "bursty")
LENGTHS = "chat, fixed:TOKENS, lognormal:MEDIAN:SIGMA"

BURST_STREAMS = 10  # arrivals at one moment in "bursty"
# What chat services log (Azure's and BurstGPT's published traces look alike): a long tail on both sides.
_CHAT = {"prompt": (120, 1.0, 2048), "output": (200, 0.8, 2048)}  # median tokens, sigma of the logarithm, longest
_SHORTEST_TOKENS = 8


class TraceError(ValueError):
    """What is wrong with a trace, and in which line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request. arrival_s: from the trace's start. reader: "normal" (reads at once), "rate:BYTES_PER_S",
    "never", "stop:BYTES" (reads so many, then never again). leaves_after_s: from arrival, the client closes;
    None: it stays to the end. is_slow: any reader but "normal".
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    reader: str = "normal"
    leaves_after_s: float | None = None
    tenant: str = ""
    tier: int = 0

    @property
    def is_slow(self) -> bool:
        return self.reader != "normal"


@dataclass(frozen=True, slots=True)
class Reader:
    """``amount``: bytes a second for "rate", bytes for "stop", else 0."""

    kind: Literal["normal", "rate", "never", "stop"]
    amount: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Reader:
        """From an Arrival's ``reader``. Raises ValueError for anything else."""
        kind, _, amount = text.partition(":")
        if kind in ("normal", "never") and not amount:
            return cls(kind)  # type: ignore[arg-type]  # one of the two
        if kind in ("rate", "stop"):
            try:
                value = float(amount)
            except ValueError:
                value = -1.0
            if math.isfinite(value) and (value > 0 or (kind == "stop" and value == 0)):
                return cls(kind, value)  # type: ignore[arg-type]  # one of the two
        raise ValueError(f"reader is {text!r}, must be one of {READERS}")


def draw(
    *,
    streams: int,
    per_s: float,
    slow: float = 0.0,
    seed: int = 0,
    arrivals: str = "poisson",
    prompts: str = "chat",
    outputs: str = "chat",
    slow_readers: Sequence[str] = ("never", "rate:500", "rate:2000", "stop:8192"),
    leaving: float = 0.5,
    leaves_after_s: tuple[float, float] = (5.0, 30.0),
) -> list[Arrival]:
    """``streams`` requests, ``per_s`` on average, a share ``slow`` of them with one of ``slow_readers``.

    Of the slow ones a share ``leaving`` leaves, uniformly within leaves_after_s. Traces that differ in
    ``slow`` alone have the same arrivals and lengths, and who is slow at a smaller share is so at a larger.
    Raises ValueError for a value that makes no trace.
    """
    if streams < 1:
        raise ValueError(f"streams is {streams}, must be at least 1")
    if not (math.isfinite(per_s) and per_s > 0):
        raise ValueError(f"per_s is {per_s}, must be above 0")
    for name, share in (("slow", slow), ("leaving", leaving)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} is {share}, must be 0 to 1")
    for reader in slow_readers:
        Reader.parse(reader)
    # One generator for each thing that is drawn: none moves another's numbers.
    times = _times(arrivals, streams, per_s, random.Random(f"arrivals {seed}"))
    prompt_tokens = _lengths(prompts, "prompt", streams, random.Random(f"prompts {seed}"))
    output_tokens = _lengths(outputs, "output", streams, random.Random(f"outputs {seed}"))
    readers, leavers = random.Random(f"readers {seed}"), random.Random(f"leavers {seed}")
    order = random.Random(f"slow {seed}").sample(range(streams), streams)
    is_slow = set(order[: round(slow * streams)])
    trace = []
    for index in range(streams):
        reader = readers.choice(slow_readers) if slow_readers else "normal"
        leaves, after_s = leavers.random() < leaving, leavers.uniform(*leaves_after_s)
        trace.append(
            Arrival(
                arrival_s=times[index],
                prompt_tokens=prompt_tokens[index],
                output_tokens=output_tokens[index],
                reader=reader if index in is_slow else "normal",
                leaves_after_s=after_s if index in is_slow and leaves else None,
            )
        )
    return trace


def _times(name: str, streams: int, per_s: float, rng: random.Random) -> list[float]:
    if name == "uniform":
        return [index / per_s for index in range(streams)]
    if name not in ARRIVALS:
        raise ValueError(f"arrivals is {name!r}, must be one of {', '.join(ARRIVALS)}")
    together = BURST_STREAMS if name == "bursty" else 1
    times, now = [], 0.0
    for index in range(streams):
        if index and index % together == 0:
            now += rng.expovariate(per_s / together)
        times.append(now)
    return times


def _lengths(name: str, what: str, count: int, rng: random.Random) -> list[int]:
    kind, *amounts = name.split(":")
    longest: float = math.inf
    try:
        match kind, [float(amount) for amount in amounts]:
            case "chat", []:
                median, sigma, longest = _CHAT[what]
            case "fixed", [tokens] if tokens >= 1 and tokens.is_integer():
                return [int(tokens)] * count
            case "lognormal", [median, sigma] if median >= 1 and 0 <= sigma < math.inf:
                longest = median * 10
            case _:
                raise ValueError
    except ValueError:
        raise ValueError(f"{what} lengths are {name!r}, must be one of {LENGTHS}") from None
    drawn = (rng.lognormvariate(math.log(median), sigma) for _ in range(count))
    return [round(min(max(tokens, _SHORTEST_TOKENS), longest)) for tokens in drawn]


def read(path: Path) -> list[Arrival]:
    """A .csv (with a header) or .jsonl trace, in order of arrival.

    Fields are an Arrival's; arrival_s, prompt_tokens and output_tokens must be there. Raises TraceError,
    which names the line, for anything else, and OSError for a file that cannot be read.
    """
    rows = {".csv": _csv_rows, ".jsonl": _jsonl_rows}.get(path.suffix.lower())
    if rows is None:
        raise TraceError(f"{path}: a trace is a .csv or a .jsonl file")
    arrivals = []
    with path.open(encoding="utf-8", newline="") as file:
        try:
            for line, row in rows(file):
                try:
                    arrivals.append(_arrival(row))
                except ValueError as error:
                    raise TraceError(f"{path}, line {line}: {error}") from None
        except UnicodeDecodeError as error:
            raise TraceError(f"{path}: not UTF-8 ({error.reason})") from None
        except csv.Error as error:
            raise TraceError(f"{path}: {error}") from None
    if not arrivals:
        raise TraceError(f"{path}: no request in it")
    return sorted(arrivals, key=lambda arrival: arrival.arrival_s)


def write(path: Path, trace: Sequence[Arrival]) -> None:
    """As .jsonl, for read()."""
    path.write_text("".join(json.dumps(asdict(arrival)) + "\n" for arrival in trace), encoding="utf-8")


def _csv_rows(file: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(file, strict=True)
    for row in reader:
        if None in row:
            yield reader.line_num, {"": "more values than columns"}
        else:
            yield reader.line_num, {name: value for name, value in row.items() if value not in ("", None)}


def _jsonl_rows(file: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            row = {"": f"not JSON ({error.msg})"}
        yield line, row if isinstance(row, dict) else {"": "not a JSON object"}


_REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
_OPTIONAL = ("reader", "leaves_after_s", "tenant", "tier")


def _arrival(row: Mapping[str, Any]) -> Arrival:
    if "" in row:
        raise ValueError(row[""])
    for name in _REQUIRED:
        if row.get(name) is None:
            raise ValueError(f"{name} is missing")
    for name in row:
        if name not in _REQUIRED + _OPTIONAL:
            raise ValueError(f"unknown field {name!r}; there are {', '.join(_REQUIRED + _OPTIONAL)}")
    reader = str(row.get("reader") or "normal").strip()
    Reader.parse(reader)
    leaves = row.get("leaves_after_s")
    return Arrival(
        arrival_s=_number(row, "arrival_s"),
        prompt_tokens=_whole(row, "prompt_tokens", 1),
        output_tokens=_whole(row, "output_tokens", 1),
        reader=reader,
        leaves_after_s=None if leaves is None else _number(row, "leaves_after_s"),
        tenant=str(row.get("tenant") or ""),
        tier=_whole(row, "tier", 0) if row.get("tier") is not None else 0,
    )


def _number(row: Mapping[str, Any], name: str) -> float:
    try:
        value = math.nan if isinstance(row[name], bool) else float(row[name])
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {row[name]!r}, must be 0 or more")
    return value


def _whole(row: Mapping[str, Any], name: str, least: int) -> int:
    value = _number(row, name)
    if value < least or not value.is_integer():
        raise ValueError(f"{name} is {row[name]!r}, must be a whole number, at least {least}")
    return int(value)
