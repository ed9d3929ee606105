"""Reads ``sluiceway.yaml`` and the gateway's settings; complaints name the file, the line, the field and the limit."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from sluiceway.runtime.config import Config
from sluiceway.runtime.errors import ConfigError, kind

Location = tuple[str | int, ...]
_Settings = TypeVar("_Settings", bound=BaseModel)


def load_config(path: Path) -> Config:
    """Raise ConfigError if the file cannot be read, is not YAML, or holds a wrong value."""
    return load_settings(path, Config)


def load_settings(path: Path, kind_of_settings: type[_Settings]) -> _Settings:
    """``load_config`` for settings of any kind."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines = {} if node is None else _lines(node, path)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"{mark.line + 1}:"
        raise ConfigError(f"{path}:{line} not YAML: {getattr(error, 'problem', error)}") from None
    try:
        return kind_of_settings.model_validate(data)
    except ValidationError as error:
        complaints = [_complaint(path, lines, detail, kind_of_settings) for detail in error.errors()]
        raise ConfigError("\n".join(complaints)) from None


def _lines(node: yaml.Node, path: Path, at: Location = ()) -> dict[Location, int]:
    """The line of every key; duplicate keys are refused, since YAML would silently take the last."""
    lines = {at: node.start_mark.line + 1}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            location = (*at, key.value)
            if location in lines:
                field = ".".join(map(str, location))
                raise ConfigError(f"{path}:{key.start_mark.line + 1}: {field}: given twice")
            lines |= _lines(value, path, location)
            lines[location] = key.start_mark.line + 1
    return lines


def _complaint(path: Path, lines: dict[Location, int], detail: Any, whole: type[BaseModel]) -> str:
    location: Location = tuple(detail["loc"])
    known = location
    while known and known not in lines:
        known = known[:-1]
    line = lines.get(known, 1)
    if detail["type"] in ("missing", "extra_forbidden"):
        known = location
    # Beyond the known keys, pydantic names the alternatives of a type.
    field = ".".join(map(str, known)) or "the file"
    if detail["type"] == "extra_forbidden":
        names = _names(location[:-1], whole)
        close = difflib.get_close_matches(str(location[-1]), names, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
        return f"{path}:{line}: {field}: unknown setting; {hint}"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "value_error":
        return f"{path}:{line}: {field}: {message}"
    return f"{path}:{line}: {field}: {message[0].lower()}{message[1:]}, got {kind(detail['input'])}"


def _names(section: Location, whole: type[BaseModel]) -> list[str]:
    """The settings that a section knows."""
    model = whole
    for part in section:
        annotation = model.model_fields[str(part)].annotation
        # "section | None": the section is what has names.
        annotation = next((each for each in get_args(annotation) if each is not type(None)), annotation)
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        model = annotation
    return list(model.model_fields)
