"""Kernels that are emitted for this CPU: compiled once, kept in the cache folder, loaded."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.store import cache_dir, remember

if TYPE_CHECKING:
    from lenetgpu.cpu.native import Emitted, Native


@cache
def native(kernel: Emitted, *sources: str) -> Native:
    """`kernel` as a function of integers; `sources` are the files beside cpu/ that it is made of.

    What the cache folder holds is compiled anew where it is damaged.
    """
    from lenetgpu.cpu import native as code

    beside = b"".join(Path(source).read_bytes() for source in sources)
    path = cache_dir() / f"cpu-{code.key(kernel, beside)}.o"
    found = _kept(path)
    if found is None:
        found = code.machine_code(kernel)
        remember(path, code.sealed(found))
    return code.load(kernel, found)


def _kept(path: Path) -> bytes | None:
    from lenetgpu.cpu.native import opened

    try:
        return opened(path.read_bytes())
    except OSError:
        return None


def addresses(*arrays: Any) -> tuple[int, ...]:
    """Where NumPy arrays begin."""
    return tuple(array.ctypes.data for array in arrays)
