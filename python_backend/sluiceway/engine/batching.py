"""What every engine with our scheduler shares: from planned steps to token events."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from sluiceway.core.events import FinishReason
from sluiceway.engine.calibration import Calibration
from sluiceway.engine.load import engine_load
from sluiceway.engine.protocol import EngineLoad, EngineRequest, EngineStatistics, RequestStatistics, TokenEvent
from sluiceway.engine.scheduler import Scheduler, StepPlan
from sluiceway.engine.sequence import Sequence, SequenceState
from sluiceway.engine.stop_strings import StopMatcher


class Detokenizer(Protocol):
    """Turns the token ids of one answer into bytes, one after the other."""

    def feed(self, token_id: int) -> bytes:
        """Bytes that this token adds (may end inside a UTF-8 sequence, may be empty)."""

    def flush(self) -> bytes:
        """Bytes still kept back when the answer ends."""


@dataclass(slots=True)
class Output:
    """The side of one request that faces the reader. rng: its own, so no neighbour changes its answer."""

    detokenizer: Detokenizer
    stops: StopMatcher
    rng: random.Random


class BatchingEngine(ABC):
    """Implements engine.protocol.Engine; a subclass computes tokens and knows their text.

    Everything but ``encode`` belongs to the engine thread.
    """

    def __init__(
        self, scheduler: Scheduler, eos_token_ids: frozenset[int], calibration: Calibration | None = None
    ) -> None:
        self._scheduler = scheduler
        self._calibration = calibration or Calibration()
        self._eos_token_ids = eos_token_ids
        self._outputs: dict[str, Output] = {}
        self._ended: list[TokenEvent] = []
        self._arrivals = 0
        self._steps = 0
        self._generated_tokens = 0
        self._aborts = 0

    @abstractmethod
    def encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def _compute(self, plan: StepPlan) -> list[int]:
        """Do the planned work; the next token id of each of ``plan.sampled``, in that order."""

    @abstractmethod
    def _new_detokenizer(self) -> Detokenizer: ...

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus answer, in tokens: never more than the KV pool holds."""
        return self._scheduler.capacity_tokens

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. ValueError for what could never run; the engine is then unchanged."""
        prompt_tokens = len(request.prompt_token_ids)
        if not 0 < prompt_tokens < self.context_tokens:
            raise ValueError(f"prompt has {prompt_tokens} tokens, must be 1 to {self.context_tokens - 1}")
        if request.sampling.max_tokens < 1:
            raise ValueError(f"max_tokens is {request.sampling.max_tokens}, must be at least 1")
        stops = StopMatcher(request.sampling.stop)
        self._scheduler.add(Sequence(request=request, arrival=self._arrivals, token_ids=list(request.prompt_token_ids)))
        self._arrivals += 1
        self._outputs[request.request_id] = Output(self._new_detokenizer(), stops, random.Random(request.sampling.seed))

    def pause(self, request_id: str) -> None:
        self._scheduler.pause(request_id)

    def resume(self, request_id: str) -> None:
        self._scheduler.resume(request_id)

    def set_weight(self, request_id: str, weight: float) -> None:
        """How much the client needs the next token (engine/protocol.py). ValueError unless finite."""
        self._scheduler.set_weight(request_id, weight)

    def release_kv(self, request_id: str) -> None:
        self._scheduler.release_kv(request_id)

    def swap_out(self, request_id: str) -> None:
        self._scheduler.swap_out(request_id)

    def abort(self, request_id: str) -> bool:
        """End the request; its blocks are free when this returns, its last event comes from step()."""
        if self._scheduler.remove(request_id) is None:
            return False
        self._aborts += 1
        held_back = self._closing_text(self._outputs.pop(request_id))
        self._ended.append(TokenEvent(request_id, (), held_back, FinishReason.CANCELLED))
        return True

    def has_work(self) -> bool:
        return bool(self._ended) or self._scheduler.has_work()

    def step(self) -> list[TokenEvent]:
        events, self._ended = self._ended, []
        if not self._scheduler.has_work():
            return events
        plan = self._scheduler.plan()
        if not plan:
            return events
        sampled = plan.sampled
        token_ids = self._compute(plan)
        self._scheduler.commit(plan)
        self._steps += 1
        events.extend(self._accept(sequence, token_id) for sequence, token_id in zip(sampled, token_ids, strict=True))
        return events

    def load(self) -> EngineLoad:
        return engine_load(self._scheduler, self._calibration)

    def statistics(self) -> EngineStatistics:
        """A snapshot; its cost grows with the number of open requests, so not for every step."""
        count = self._scheduler.count
        requests = {
            request_id: RequestStatistics(
                state=sequence.state.value,
                kv_blocks=len(sequence.blocks),
                generated_tokens=sequence.generated,
                host_blocks=len(sequence.host_blocks),
            )
            for request_id, sequence in self._scheduler.sequences.items()
        }
        return EngineStatistics(
            kv_blocks_total=self._scheduler.pool.total,
            kv_blocks_free=self._scheduler.pool.free_count,
            running=count(SequenceState.RUNNING) + count(SequenceState.PREFILL),
            waiting=count(SequenceState.WAITING),
            paused=count(SequenceState.PAUSED),
            preempted=count(SequenceState.PREEMPTED),
            steps=self._steps,
            generated_tokens=self._generated_tokens,
            aborts=self._aborts,
            recomputed_tokens=self._scheduler.recomputed_tokens,
            requests=requests,
            host_blocks_total=self._scheduler.host_blocks_total,
            host_blocks_free=self._scheduler.host_blocks_free,
            swapped=count(SequenceState.SWAPPED),
            swap_outs=self._scheduler.swap_outs,
            swap_ins=self._scheduler.swap_ins,
            displacements=self._scheduler.displacements,
        )

    def _may_stop(self, sequence: Sequence) -> bool:
        """Whether min_tokens allows that the next token ends the answer."""
        return sequence.generated >= sequence.request.sampling.min_tokens

    def _accept(self, sequence: Sequence, token_id: int) -> TokenEvent:
        sampling = sequence.request.sampling
        output = self._outputs[sequence.request_id]
        may_stop = self._may_stop(sequence)
        sequence.append(token_id)
        self._generated_tokens += 1
        text = output.detokenizer.feed(token_id)
        reason: FinishReason | None = None
        if may_stop:
            text, stopped = output.stops.feed(text)
            if stopped or (token_id in self._eos_token_ids and not sampling.ignore_eos):
                reason = FinishReason.STOP
                text += b"" if stopped else self._closing_text(output)
        if reason is None and (
            sequence.generated >= sampling.max_tokens or len(sequence.token_ids) >= self.context_tokens
        ):
            reason = FinishReason.LENGTH
            text += self._closing_text(output)
        if reason is not None:
            self._scheduler.remove(sequence.request_id)
            del self._outputs[sequence.request_id]
        return TokenEvent(sequence.request_id, (token_id,), text, reason)

    @staticmethod
    def _closing_text(output: Output) -> bytes:
        """What detokenizer and stop matcher still keep back; a stop string may end exactly there."""
        text, stopped = output.stops.feed(output.detokenizer.flush())
        return text if stopped else text + output.stops.flush()
