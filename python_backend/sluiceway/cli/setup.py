"""Where the installed parts are: the repository, Triton, its Python stub, Envoy."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import sluiceway

REPOSITORY = Path(sluiceway.__file__).resolve().parents[2]


class NotInstalledError(RuntimeError):
    """A part of the stack is missing; the message says which and how it comes."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Paths of the server binaries. ``triton_libraries`` goes to LD_LIBRARY_PATH."""

    tritonserver: Path
    python_backend: Path
    stub: Path
    triton_libraries: Path
    envoy: Path

    @classmethod
    def find(cls) -> Tools:
        """In $SLUICEWAY_TOOLS (a virtual environment) or .tools of the repository.

        Raises NotInstalledError.
        """
        root = Path(os.environ.get("SLUICEWAY_TOOLS") or REPOSITORY / ".tools")
        site = next(iter(sorted(root.glob("lib/python3.*/site-packages"))), None)
        if site is None:
            raise NotInstalledError(f"no virtual environment at {root}: run `make setup`, or set SLUICEWAY_TOOLS")
        triton = site / "pytriton" / "tritonserver"
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        tools = cls(
            tritonserver=triton / "bin" / "tritonserver",
            python_backend=triton / "backends" / "python",
            stub=triton / "python_backend_stubs" / version / "triton_python_backend_stub",
            triton_libraries=site / "nvidia_pytriton.libs",
            envoy=site / "envoy" / "_bin" / "envoy",
        )
        for path in (tools.tritonserver, tools.python_backend, tools.stub, tools.triton_libraries, tools.envoy):
            if not path.exists():
                raise NotInstalledError(f"{path.name} is missing in {root} (for Python {version}): run `make setup`")
        return tools


def python_library_folder() -> Path:
    """The folder of this interpreter's own libpython.

    The stub loads the first libpython of its version that the loader finds; another installation's older one
    breaks `import ssl`. Raises NotInstalledError.
    """
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    folders = [
        Path(str(sysconfig.get_config_var("LIBDIR"))),
        Path("/usr/lib") / str(sysconfig.get_config_var("MULTIARCH")),
    ]
    for folder in folders:
        if (folder / name).exists():
            return folder
    raise NotInstalledError(f"{sys.executable} has no shared library {name}, which Triton's Python stub loads")
