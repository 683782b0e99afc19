"""Versions behind a result: the package, its commit, Python, libraries and the GPU driver."""

import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from lenetgpu import __version__
from lenetgpu.errors import LenetError
from lenetgpu.gpu import nvml, nvrtc
from lenetgpu.gpu.compiler import CUPY, installed
from lenetgpu.gpu.device import Gpu

CHECKOUT = Path(__file__).resolve().parents[2]
COUNTED = ("lenetgpu", "scripts", "weights", "data")


def _version(*names: str) -> str | None:
    distribution = installed(*names)
    return distribution and distribution[0]


@cache
def commit(folder: Path = CHECKOUT) -> str | None:
    """Return the commit of the checkout that the package runs from, or LENETGPU_COMMIT, or None.

    "+changes" is appended if files that affect results (COUNTED) differ from it or are untracked.
    """
    if not (folder / ".git").exists():
        return os.environ.get("LENETGPU_COMMIT") or None
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        changes = _git(folder, "status", "--porcelain", "--", *COUNTED)
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+changes" if changes else head


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def software(gpu: Gpu | None) -> dict[str, str | None]:
    """Return versions for a document's header; None for GPU software if no GPU was used."""
    versions = {"version": __version__, "commit": commit(), "python": sys.version.split()[0]}
    versions |= {"numpy": _version("numpy"), "numba": _version("numba")}
    versions |= dict.fromkeys(("cupy", "driver", "cuda_driver", "nvrtc"))
    if gpu is not None:
        versions |= {"cupy": _version(*CUPY), "driver": nvml.driver_version()}
        versions["cuda_driver"] = nvml.cuda_driver_version()
        with suppress(LenetError):
            versions["nvrtc"] = "{}.{}".format(*nvrtc.version())
    return versions
