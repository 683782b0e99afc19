"""Kernels emitted for this CPU: compiled once, stored in the cache folder, loaded from there."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.store import entries

if TYPE_CHECKING:
    from lenetgpu.cpu.native import Emitted, Native


@cache
def native(kernel: Emitted, *sources: str) -> Native:
    """Return `kernel` as a native function of integers, from the cache or newly compiled.

    `sources` are the files outside cpu/ that define the kernel; their content is part of the
    cache key. A damaged cache entry is recompiled.
    """
    from lenetgpu.cpu import native as code

    beside = b"".join(Path(source).read_bytes() for source in sources)
    name = f"{kernel.name}.{code.key(kernel, beside)[:32]}"
    found = entries.read("cpu", name)
    if found is None:
        found = code.machine_code(kernel)
        entries.write("cpu", name, found)
    return code.load(kernel, found)


def addresses(*arrays: Any) -> tuple[int, ...]:
    """Return the addresses of NumPy arrays."""
    return tuple(array.ctypes.data for array in arrays)
