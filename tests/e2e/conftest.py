from __future__ import annotations

import pytest

from sluiceway.cli.stack import Stack, StackSettings


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """A running stack with the scripted engine; modules that need another configuration define their own."""
    with Stack(StackSettings(run_dir=tmp_path_factory.mktemp("stack"), config={"engine": {"kind": "scripted"}})) as up:
        yield up
