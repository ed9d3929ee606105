"""The model's refusals in the names of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from sluiceway.client.frames import GenerationError
from sluiceway.gateway.errors import Problem, problem_of
from sluiceway.gateway.events import Event, close

# "in a context of": the prompt fills the model's context; "max_prompt_tokens": it is longer than the model may take.
_TOO_LONG = re.compile(r"in a context of \d+ tokens|\(max_prompt_tokens\)")
_SAMPLING = "sampling_parameters"


def named(error: GenerationError, kind: str) -> Problem:
    """kind: "chat" or "text": what the prompt came from."""
    problem = problem_of(error)
    if problem.param is None:
        return problem
    if problem.param.startswith(_SAMPLING):
        param = problem.param[len(_SAMPLING) + 1 :] or None
    elif problem.param == "text_input":
        param = "messages" if kind == "chat" else "prompt"
    else:
        param = problem.param
    message = problem.message.partition(": ")[2]
    code = "context_length_exceeded" if _TOO_LONG.search(message) else "invalid_value"
    return Problem(problem.status, f"{param}: {message}" if param else message, param=param, code=code)


async def naming(events: AsyncIterator[Event], kind: str) -> AsyncIterator[Event]:
    """``events``, whose GenerationError becomes a Problem. Closes them."""
    try:
        async for event in events:
            yield event
    except GenerationError as error:
        raise named(error, kind) from None
    finally:
        await close(events)
