"""The model's tokenizer and chat template: messages to a prompt, and lengths in tokens."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sluiceway.gateway.errors import Problem


class TokenizerError(ValueError):
    """The folder holds no tokenizer that can be loaded."""


class ChatTokenizer:
    """Loaded once, used by all requests of a process; nothing is fetched from anywhere."""

    def __init__(self, directory: Path) -> None:
        """Raises TokenizerError."""
        # Not AutoTokenizer: it imports torch, 250 MB that a gateway has no use for.
        from transformers import PreTrainedTokenizerFast

        if not (directory / "tokenizer.json").is_file():
            raise TokenizerError(f"model_dir {directory}: no tokenizer.json")
        try:
            self._tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(str(directory), local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise TokenizerError(f"model_dir {directory}: {error}") from error
        self._counting = threading.Lock()

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        """What the template makes of the messages, up to where the assistant's words begin.

        Raises Problem 400: the model has no template, its template refuses these messages, or has no place for tools.
        """
        if not self.has_chat_template:
            raise Problem(400, "messages: this model has no chat template; use /v1/completions", param="messages")
        text = self._render(messages, tools)
        if tools and text == self._render(messages, None):
            raise Problem(400, "tools: this model's chat template has no place for them", param="tools")
        return text

    def count(self, text: str) -> int:
        """Tokens of a prompt, as the backend counts them."""
        # transformers sets truncation off on each call; two threads at that raise "Already borrowed".
        with self._counting:
            return len(self._tokenizer.encode(text))

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) if tools else None, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            # The template's own words ("roles must alternate"); of any other error only its kind: it may quote.
            why = str(error) if isinstance(error, TemplateError) else type(error).__name__
            raise Problem(
                400, f"messages: the model's chat template refuses them: {why[:200]}", param="messages"
            ) from None
        return text
