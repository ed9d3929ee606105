"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sluiceway.gateway.openai.fields import Fields

Prompt = Annotated[str, Field(min_length=1)]


class CompletionRequest(Fields):
    """prompt: one text, alone or in a list. Token ids are not taken."""

    prompt: Prompt | Annotated[list[Prompt], Field(min_length=1, max_length=1)]
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    logprobs: None = None
    suffix: None = None

    @property
    def text(self) -> str:
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]
