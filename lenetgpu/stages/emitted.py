"""Kernels that are emitted for this CPU: compiled once, kept in the cache folder, loaded."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.store import entries

if TYPE_CHECKING:
    from lenetgpu.cpu.native import Emitted, Native


@cache
def native(kernel: Emitted, *sources: str) -> Native:
    """`kernel` as a function of integers; `sources` are the files beside cpu/ that it is made of.

    What the cache holds is compiled anew where it is damaged.
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
    """The addresses of NumPy arrays."""
    return tuple(array.ctypes.data for array in arrays)
