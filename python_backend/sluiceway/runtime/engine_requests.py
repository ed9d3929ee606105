"""The streams' requests in the engine, and what the engine says of them."""

from __future__ import annotations

from sluiceway.core.events import EngineFinished, Event, FinishReason, TokensProduced
from sluiceway.engine.protocol import EngineRequest, SamplingParams, TokenEvent
from sluiceway.runtime.config_sections import DegradedConfig
from sluiceway.runtime.engine_loop import EnginePort
from sluiceway.runtime.source import EngineSource
from sluiceway.runtime.stream import Stream


class EngineRequests:
    """By the engine's ids; news of any other id is too late. replaced: answers made anew, and short."""

    def __init__(self, engine: EnginePort, degraded: DegradedConfig) -> None:
        self._engine = engine
        self._degraded = degraded
        self._streams: dict[str, Stream] = {}
        self.replaced = 0

    def find(self, engine_id: str) -> Stream | None:
        return self._streams.get(engine_id)

    def ids(self) -> list[str]:
        """Those of which the engine has not said its last."""
        return list(self._streams)

    def begin(self, stream: Stream, prompt_token_ids: tuple[int, ...]) -> None:
        """Under the stream's own id."""
        stream.prompt_tokens = len(prompt_token_ids)
        if self._degraded.enabled:
            stream.prompt_token_ids = prompt_token_ids
        self._submit(stream, stream.request_id, prompt_token_ids, stream.request.sampling)

    def replace(self, stream: Stream) -> None:
        """A short answer in place of the long one. What the engine still says of that one is not heard."""
        self.replaced += 1
        stream.source.abort()
        del self._streams[stream.engine_id]
        engine_id = f"{stream.request_id}:degraded"
        stream.source = EngineSource(self._engine, engine_id)
        asked = stream.request.sampling
        most = min(asked.max_tokens, self._degraded.max_tokens)
        # The same prompt and stop strings, and no luck: the likeliest answer there is.
        short = SamplingParams(max_tokens=most, temperature=0.0, stop=asked.stop, ignore_eos=asked.ignore_eos)
        self._submit(stream, engine_id, stream.prompt_token_ids, short)

    def hear(self, stream: Stream, event: TokenEvent, at: float) -> list[Event]:
        """Note what the engine said of the stream at ``at``; answer what that means for its sender."""
        heard: list[Event] = []
        if event.token_ids:
            stream.token_times.append(at)
            stream.produced_tokens += len(event.token_ids)
            stream.first_token_at = stream.first_token_at or at
        reason = event.finish_reason
        if stream.whole is not None:
            stream.whole.add(event)
            if stream.whole.is_full and reason is None:
                stream.source.abort()
            elif stream.whole.is_full:
                reason = FinishReason.LENGTH
        elif event.token_ids or event.text:
            heard.append(TokensProduced(event.token_ids, event.text))
        if reason is not None:
            stream.kv_free_at = at
            del self._streams[event.request_id]
            heard.append(EngineFinished(reason))
        return heard

    def _submit(
        self, stream: Stream, engine_id: str, prompt_token_ids: tuple[int, ...], sampling: SamplingParams
    ) -> None:
        stream.engine_id = engine_id
        self._streams[engine_id] = stream
        self._engine.submit(EngineRequest(request_id=engine_id, prompt_token_ids=prompt_token_ids, sampling=sampling))
