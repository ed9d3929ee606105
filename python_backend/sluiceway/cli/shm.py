"""Triton's shared memory regions in /dev/shm, told apart by a prefix that names their owner."""

from __future__ import annotations

import os
from pathlib import Path

SHM = Path("/dev/shm")  # noqa: S108 - Linux's name for it, not a temporary file of ours
_NAME = "sluiceway-"


def prefix(owner_pid: int) -> str:
    return f"{_NAME}{owner_pid}-"


def regions(of_prefix: str) -> list[Path]:
    return sorted(SHM.glob(f"{of_prefix}*"))


def remove(of_prefix: str) -> None:
    for path in regions(of_prefix):
        path.unlink(missing_ok=True)


def remove_abandoned() -> None:
    """Regions of supervisors that are no more (killed before they could clean up)."""
    for path in SHM.glob(f"{_NAME}*"):
        owner = path.name.removeprefix(_NAME).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            path.unlink(missing_ok=True)


def own_prefix() -> str:
    return prefix(os.getpid())
