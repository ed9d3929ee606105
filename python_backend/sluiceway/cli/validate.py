"""``python -m sluiceway.cli.validate FILE...``: Envoy's own validation of its configuration files."""

from __future__ import annotations

import subprocess
import sys

from sluiceway.cli.setup import Tools


def main(paths: list[str]) -> int:
    envoy = Tools.find().envoy
    failed = 0
    for path in paths:
        command = [
            str(envoy),
            "--mode",
            "validate",
            "--disable-hot-restart",
            "--log-level",
            "error",
            "--config-path",
            path,
        ]
        failed |= subprocess.run(command, check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
