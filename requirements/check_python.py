"""Can this interpreter host Triton's Python stub? Exit 0 if so; else say why not.

The stub embeds libpython: a static interpreter cannot be loaded into it. It comes for 3.8 to 3.13, and the
packages that it needs (numpy below 2) have wheels up to 3.12. Written for any Python 3.
"""

import importlib
import sys
import sysconfig
from pathlib import Path


def problem():  # type: () -> str | None
    version = ".".join(map(str, sys.version_info[:2]))
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        return "is Python " + version + "; 3.11 or 3.12 is needed"
    for module in ("venv", "ensurepip"):
        try:
            importlib.import_module(module)
        except ImportError:
            return "has no module " + module + " (on Debian: the package python" + version + "-venv)"
    name = "libpython" + version + ".so.1.0"
    folders = [sysconfig.get_config_var("LIBDIR"), "/usr/lib/" + str(sysconfig.get_config_var("MULTIARCH"))]
    if not any(folder and Path(folder, name).exists() for folder in folders):
        return (
            "has no shared library " + name + " (on Debian: the package libpython" + version + "; "
            "built from source: configure it with --enable-shared)"
        )
    return None


if __name__ == "__main__":
    reason = problem()
    if reason:
        sys.stderr.write(sys.executable + " " + reason + "\n")
    sys.exit(1 if reason else 0)
