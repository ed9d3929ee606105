"""``sluiceway demo``: readers, readers that stopped, and one that vanishes, on the real model."""

from sluiceway.cli.demo.run import run_demo

__all__ = ["run_demo"]
