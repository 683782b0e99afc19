"""Denormal numbers as zeros while a CPU computes: some processors take 20 times as long over them.

The state belongs to a thread. It is read and set through the C library's `fegetenv`, so that
nothing has to be compiled for it and NumPy's products on the calling thread have it too; where that
is not to be had (other systems than Linux, other processors) denormals stay what they are.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

_WHERE = {"x86_64": (7, 1 << 15 | 1 << 6), "aarch64": (0, 1 << 24)}
"""By processor: the 32-bit word of `fenv_t` that decides, and the bits for results and operands."""
_State = ctypes.c_uint32 * 64
"""More than any `fenv_t` takes."""


@cache
def _access() -> tuple[Any, Any, int, int] | None:
    """(`fegetenv`, `fesetenv`, word, bits), None where they are not to be had."""
    found = _WHERE.get(platform.machine())
    if found is None or not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None)
        return library.fegetenv, library.fesetenv, *found
    except (OSError, AttributeError):
        return None


def flushes() -> bool:
    """Whether this thread takes denormals for zeros."""
    access = _access()
    if access is None:
        return False
    state = _State()
    access[0](state)
    return state[access[2]] & access[3] == access[3]


def flush() -> None:
    """Take denormals for zeros in this thread from now on: for threads of the package's own."""
    flushed().__enter__()


class flushed:  # noqa: N801
    """A block in which this thread takes denormals for zeros; its state is put back after it."""

    def __enter__(self) -> Self:
        access = _access()
        if access is not None:
            read, write, word, bits = access
            self._state = _State()
            read(self._state)
            kept = self._state[word]
            self._state[word] = kept | bits
            write(self._state)
            self._state[word] = kept
        return self

    def __exit__(self, *error: object) -> None:
        access = _access()
        if access is not None:
            access[1](self._state)
