"""core/ stands alone: the standard library and itself, and nothing that knows the time or the world."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import sluiceway.core

FILES = sorted(Path(sluiceway.core.__file__).parent.glob("*.py"))
FORBIDDEN = {"asyncio", "datetime", "io", "logging", "multiprocessing", "os", "queue", "random", "select", "selectors",
             "signal", "socket", "subprocess", "threading", "time"}  # fmt: skip


def imported_modules(source: str) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            modules.add(str(node.module))
    return modules


def offending(source: str) -> set[str]:
    return {
        module
        for module in imported_modules(source)
        if not f"{module}.".startswith("sluiceway.core.")
        and (module.split(".")[0] not in sys.stdlib_module_names or module.split(".")[0] in FORBIDDEN)
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_core_imports_only_pure_standard_library(path: Path) -> None:
    assert offending(path.read_text()) == set()


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from threading import Lock",
        "import numpy",
        "import sluiceway.engine",
        "from sluiceway import engine",
    ],
)
def test_this_check_sees_what_it_forbids(line: str) -> None:
    assert offending(line)
