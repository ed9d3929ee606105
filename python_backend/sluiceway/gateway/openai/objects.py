"""OpenAI's response objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluiceway.gateway.openai.tool_calls import Call

# By the kind of an answer: what its objects call themselves.
_CHUNK = {"chat": "chat.completion.chunk", "text": "text_completion"}
_WHOLE = {"chat": "chat.completion", "text": "text_completion"}


@dataclass(slots=True)
class Answer:
    """What all objects of one answer share. kind: "chat" or "text". created: Unix time in seconds.

    name: what its id is made of. return_token_ids: choices hold them too, as vLLM's do.
    """

    kind: str
    name: str
    created: int
    model: str
    prompt_tokens: int
    return_token_ids: bool = False
    calls: int = field(default=0, init=False)

    @property
    def id(self) -> str:
        return f"{'chatcmpl' if self.kind == 'chat' else 'cmpl'}-{self.name}"

    def chunk(
        self,
        parts: Sequence[str | Call],
        token_ids: Sequence[int],
        *,
        is_first: bool,
        finish_reason: str | None,
        has_usage: bool,
    ) -> dict[str, object]:
        """One piece of a streamed answer. has_usage: the client asked for usage, so other chunks say null."""
        text = "".join(part for part in parts if isinstance(part, str))
        choice: dict[str, object] = {"index": 0}
        if self.kind == "chat":
            delta: dict[str, object] = {"role": "assistant"} if is_first else {}
            if text or is_first:
                delta["content"] = text
            first = self.calls
            calls = [{"index": index} | call for index, call in enumerate(self._calls(parts), first)]
            if calls:
                delta["tool_calls"] = calls
            choice |= {"delta": delta}
        else:
            choice |= {"text": text}
        choice |= self._end_of_choice(token_ids, finish_reason)
        return self._object(_CHUNK) | {"choices": [choice]} | ({"usage": None} if has_usage else {})

    def usage_chunk(self, completion_tokens: int) -> dict[str, object]:
        """The one after the last, for a client that asked."""
        return self._object(_CHUNK) | {"choices": [], "usage": self._usage(completion_tokens)}

    def whole(self, parts: Sequence[str | Call], token_ids: Sequence[int], finish_reason: str) -> dict[str, object]:
        text = "".join(part for part in parts if isinstance(part, str))
        choice: dict[str, object] = {"index": 0}
        if self.kind == "chat":
            calls = self._calls(parts)
            content = text or (None if calls else "")
            message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
            choice |= {"message": message | ({"tool_calls": calls} if calls else {})}
        else:
            choice |= {"text": text}
        choice |= self._end_of_choice(token_ids, finish_reason)
        return self._object(_WHOLE) | {"choices": [choice], "usage": self._usage(len(token_ids))}

    def _end_of_choice(self, token_ids: Sequence[int], finish_reason: str | None) -> dict[str, object]:
        """What stands behind a choice's content."""
        end: dict[str, object] = {"logprobs": None, "finish_reason": self._reason(finish_reason)}
        return end | {"token_ids": token_ids} if self.return_token_ids else end

    def _calls(self, parts: Sequence[str | Call]) -> list[dict[str, object]]:
        calls = []
        for part in parts:
            if isinstance(part, Call):
                calls.append(self._call(part))
                self.calls += 1
        return calls

    def _call(self, call: Call) -> dict[str, object]:
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": f"call_{self.name}_{self.calls}", "type": "function", "function": function}

    def _reason(self, finish_reason: str | None) -> str | None:
        # Reasons of an answer that was cut short (cancelled, stalled, quota, degraded, shutdown, error) have no name
        # in OpenAI's API; they keep their own, as vLLM's "abort" does.
        return "tool_calls" if finish_reason == "stop" and self.calls else finish_reason

    def _object(self, kinds: Mapping[str, str]) -> dict[str, object]:
        return {"id": self.id, "object": kinds[self.kind], "created": self.created, "model": self.model}

    def _usage(self, completion_tokens: int) -> Mapping[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
        }


def model_object(name: str, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": "sluiceway"}
