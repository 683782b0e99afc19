"""The installed NVRTC's version, cached: loading NVRTC takes longer than loading cached kernels.

A cached version is valid while the library's size and time and the package folders' times match.
"""

import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import libraries_by_name
from lenetgpu.store import entries

NO_CACHE = "--no-cache"
CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_CHOOSES = ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX", "LD_LIBRARY_PATH")
_MAPPED = Path("/proc/self/maps")


@dataclass(frozen=True)
class Compiler:
    """NVRTC's (major, minor), NO_CACHE if it supports it, and the library's name and size or ""."""

    version: tuple[int, int]
    options: tuple[str, ...]
    build: str = ""


def installed(*names: str) -> tuple[str, str] | None:
    """Return (version, name) of the first of these distributions that is installed, or None."""
    from importlib import metadata

    for name in names:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name), name
    return None


@cache
def library() -> Any:
    """Return NVRTC's functions; raise LenetError if it is not installed."""
    try:
        with libraries_by_name():
            from cuda.bindings import nvrtc

            nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise LenetError(
            "compiling kernels: expected NVRTC through cuda-bindings, found none "
            f"({error}); pip install 'lenetgpu[cuda13-ctk]'"
        ) from error
    return nvrtc


@cache
def asked() -> Compiler:
    """Query the library and cache the result; raise LenetError if it is not installed."""
    nvrtc = library()
    _, major, minor = nvrtc.nvrtcVersion()
    _, program = nvrtc.nvrtcCreateProgram(b"", b"probe.cu", 0, [], [])
    status = nvrtc.nvrtcCompileProgram(program, 1, [NO_CACHE.encode()])[0]
    nvrtc.nvrtcDestroyProgram(program)
    options = (NO_CACHE,) if int(status) == 0 else ()
    stamps = _loaded()
    build = f"{Path(stamps[0][0]).name} {stamps[0][1]}" if stamps else ""
    queried = Compiler((int(major), int(minor)), options, build)
    if stamps:  # only if the loaded file is known
        facts = asdict(queried) | {"library": stamps[0][0], "stamps": stamps}
        entries.save("nvrtc", _record(), facts)
    return queried


@cache
def _remembered() -> Compiler | None:
    facts = entries.facts_of("nvrtc", _record())
    with suppress(OSError, ValueError, LookupError, TypeError, OverflowError):
        if facts is not None and facts["stamps"] == _stamps(facts["library"]):
            major, minor = map(int, facts["version"])
            options = (NO_CACHE,) if NO_CACHE in facts["options"] else ()
            return Compiler((major, minor), options, str(facts["build"]))
    return None


def current() -> Compiler:
    """Return the cached compiler if it is valid, else query the library."""
    return _remembered() or asked()


def outdated() -> bool:
    """Load the library; return True if it differs from the cache, which `current` then ignores."""
    was = _remembered()
    changed = was is not None and was != asked()
    if changed:
        _remembered.cache_clear()
    return changed


def _record() -> str:
    """Return the cache entry's name, for this Python and the variables that select a library."""
    return entries.name_of([sys.prefix, *(os.environ.get(name) for name in _CHOOSES)])


def _stamps(file: str) -> list[list[Any]]:
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    folders = [[path, os.stat(path).st_mtime_ns] for path in packages if os.path.isdir(path)]
    return [[file, os.stat(file).st_size, os.stat(file).st_mtime_ns], *folders]


def _loaded() -> list[list[Any]] | None:
    try:
        lines = _MAPPED.read_text().splitlines()
        (file,) = {line.split(maxsplit=5)[-1] for line in lines if "libnvrtc.so" in line}
        return _stamps(file)
    except (OSError, ValueError):
        return None
