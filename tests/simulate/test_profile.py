"""Profiles by name and from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluiceway.cli.simulate.profile import PROFILES, ProfileError, load


@pytest.mark.parametrize("name", PROFILES)
def test_named_ones(name: str) -> None:
    assert load(name).name == name
    assert load(name).cost.base_s > 0


def write(path: Path, values: Any) -> str:
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return str(path)


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    profile = load(write(tmp_path / "mine.json", {"base": "gpu", "kv_blocks": 77}))
    assert (profile.name, profile.kv_blocks, profile.base_s) == ("mine", 77, PROFILES["gpu"].base_s)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ("{", "not JSON"), ("[]", "not a JSON object"), ({"base": "cpu"}, "base is 'cpu'"), ({}, "missing"),
        ({"base": "gpu", "cores": 4}, "unknown field 'cores'"), ({"base": "gpu", "kv_blocks": 0}, "kv_blocks is 0"),
        ({"base": "gpu", "kv_blocks": 1.5}, "kv_blocks is 1.5, must be a whole number"),
        ({"base": "gpu", "base_s": "fast"}, "base_s is 'fast', must be a number"),
        ({"base": "gpu", "per_stream_s": -1}, "per_stream_s is -1"),
        ({"base": "gpu", "admission_free_share": 1}, "admission_free_share is 1"),
        ({"base": "gpu", "host_kv_bytes": 1}, "host_kv_bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, values: Any, complaint: str) -> None:
    with pytest.raises(ProfileError) as raised:
        load(write(tmp_path / "mine.json", values))
    assert complaint in str(raised.value)


def test_neither_a_name_nor_a_file() -> None:
    with pytest.raises(ProfileError, match="must be gpu, bench or a"):
        load("cpu")
