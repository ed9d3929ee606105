"""A trace as real clients, and what became of each of them as the simulator's Outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sluiceway.cli.bench.plans import SAMPLING, SMALL_WINDOW, connection
from sluiceway.cli.bench.readers import (
    ClientPlan,
    Never,
    Normal,
    Rate,
    Reading,
    ReadingPolicy,
    StopAfter,
    StreamRequest,
)
from sluiceway.cli.simulate.figures import Outcome
from sluiceway.cli.simulate.trace import Arrival, Reader

NORMAL_WINDOW = 65_535
_WORDS = "Tell me something about the river. "


def plans(port: int, trace: Sequence[Arrival], prefix: str) -> list[ClientPlan]:
    """One client a request, on a connection of its own. Slow ones have a small window: a large one hides them."""
    return [
        ClientPlan(
            connection=connection(port, SMALL_WINDOW if each.is_slow else NORMAL_WINDOW),
            request=StreamRequest(
                prompt=prompt(each.prompt_tokens),
                max_tokens=each.output_tokens,
                client_id=name(prefix, index),
                sampling=SAMPLING,
            ),
            policy=reading_policy(each.reader),
            start_after_s=each.arrival_s,
            leave_after_s=each.leaves_after_s,
        )
        for index, each in enumerate(trace)
    ]


def name(prefix: str, index: int) -> str:
    return f"{prefix}-{index:03d}"


def prompt(tokens: int) -> str:
    """A text of so many tokens of the scripted engine: one a byte."""
    return (_WORDS * (tokens // len(_WORDS) + 1))[:tokens]


def reading_policy(reader: str) -> ReadingPolicy:
    """As an Arrival's ``reader`` says. All parse: what came into the window counts as delivered."""
    parsed = Reader.parse(reader)
    match parsed.kind:
        case "rate":
            return Rate(parsed.amount)
        case "stop":
            return StopAfter(int(parsed.amount))
        case "never":
            return Never(parses=True)
        case "normal":
            return Normal()


def outcomes(
    trace: Sequence[Arrival], prefix: str, readings: Iterable[Reading], generated: Mapping[str, int], *, began_at: float
) -> list[Outcome]:
    """One a request of the trace. generated: tokens by client id, as the backend counted them.

    began_at: of the trace, monotonic; the arrival of a request that was never sent.
    """
    by_name = {reading.client_id: reading for reading in readings}
    return [
        _outcome(name(prefix, index), each, by_name.get(name(prefix, index)), generated, began_at + each.arrival_s)
        for index, each in enumerate(trace)
    ]


def _outcome(
    client_id: str, arrival: Arrival, reading: Reading | None, generated: Mapping[str, int], planned_at: float
) -> Outcome:
    ttft = None if reading is None else reading.ttft_s
    ended = reading is not None and bool(reading.finish_reason)
    leaves = reading is not None and bool(reading.left) and arrival.leaves_after_s is not None and not ended
    return Outcome(
        request_id=client_id,
        is_slow=arrival.is_slow,
        arrived_at=planned_at if reading is None else reading.opened_at,
        first_token_at=None if reading is None or ttft is None else reading.opened_at + ttft,
        finished_at=reading.arrivals[-1] if reading is not None and ended else None,
        asked_tokens=arrival.output_tokens,
        generated_tokens=generated.get(client_id, 0),
        delivered_tokens=0 if reading is None else sum(reading.token_counts),
        left_at=reading.closed_at if reading is not None and leaves else None,
        finish_reason="" if reading is None else reading.finish_reason,
        tenant=arrival.tenant,
    )
