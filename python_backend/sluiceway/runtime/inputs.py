"""The values of a request's inputs. They raise RequestError naming the input and what it must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sluiceway.runtime.errors import RequestError

Array = npt.NDArray[Any]


def single(inputs: Mapping[str, Array], name: str) -> Any:
    """The only element of an input, or None if it was not sent."""
    array = inputs.get(name)
    if array is None:
        return None
    if array.size != 1:
        raise RequestError(f"{name}: must hold 1 element, got {array.size}")
    return array.reshape(-1)[0]


def bytes_of(inputs: Mapping[str, Array], name: str) -> bytes | None:
    value = single(inputs, name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise RequestError(f"{name}: must be BYTES, got {type(value).__name__}")
    return bytes(value)  # a copy: the array is a view into Triton's shared memory


def integer(inputs: Mapping[str, Array], name: str) -> int | None:
    value = single(inputs, name)
    if value is None:
        return None
    if not isinstance(value, np.integer):
        raise RequestError(f"{name}: must be INT64, got {type(value).__name__}")
    return int(value)


def flag(inputs: Mapping[str, Array], name: str) -> bool | None:
    value = single(inputs, name)
    if value is None:
        return None
    if not isinstance(value, bool | np.bool_):
        raise RequestError(f"{name}: must be BOOL, got {type(value).__name__}")
    return bool(value)
