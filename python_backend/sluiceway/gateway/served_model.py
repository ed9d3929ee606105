"""The one model that a gateway serves: its names, and prompts for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import HTTPConnection

from sluiceway.gateway.errors import Problem
from sluiceway.gateway.settings import GatewaySettings
from sluiceway.gateway.tokenizer import ChatTokenizer


def check_name(connection: HTTPConnection, name: str) -> None:
    """Raises Problem 404."""
    settings: GatewaySettings = connection.app.state.settings
    if name not in (settings.served_model_name, settings.triton_model):
        text = f"model: no such model; {settings.served_model_name} is served"
        raise Problem(404, text, param="model", code="model_not_found")


# A long prompt takes a while to render and to count: on a thread, so that other streams go on meanwhile.


async def chat_prompt(
    connection: HTTPConnection, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> str:
    """Raises Problem: see ChatTokenizer.prompt; or 501, without a tokenizer."""
    return await asyncio.to_thread(_tokenizer(connection).prompt, messages, tools)


async def count_tokens(connection: HTTPConnection, prompt: str) -> int:
    """Raises Problem 501, without a tokenizer."""
    return await asyncio.to_thread(_tokenizer(connection).count, prompt)


def _tokenizer(connection: HTTPConnection) -> ChatTokenizer:
    tokenizer: ChatTokenizer | None = connection.app.state.tokenizer
    if tokenizer is None:
        raise Problem(501, "this gateway has no tokenizer: model_dir is not set", code="not_implemented")
    return tokenizer
