"""Numba compilation on first call, so that importing a variant costs nothing; its cache's key."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CellType, FunctionType
from typing import Any


class LazyJit:
    """A function compiled by Numba (nopython, no GIL, cached on disk) when first called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Callable[..., Any] | None = None
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any) -> Any:
        """Call the compiled function."""
        if self._compiled is None:
            import numba

            self._compiled = numba.njit(cache=True, nogil=True)(self._function)
        return self._compiled(*args)


def lazy_njit(function: Callable[..., Any]) -> LazyJit:
    """Decorator: compile `function` with Numba on its first call."""
    return LazyJit(function)


@cache
def _sources() -> str:
    """A hash of this folder's files: what emitted code is made of."""
    files = sorted(Path(__file__).resolve().parent.glob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def njit(function: Callable[..., Any]) -> Any:
    """Decorator: Numba (nopython, no GIL), cached on disk while no file of this folder changes.

    Numba's own cache looks at the function's file alone: what it emits and calls from others would
    go stale. A closure's values are in the key, so the function gets one that it does not read.
    """
    import numba

    code = function.__code__
    assert not code.co_freevars, "expected a function of a module"
    keyed = FunctionType(
        code.replace(co_freevars=("sources",)),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        (CellType(_sources()),),
    )
    keyed.__doc__ = function.__doc__
    keyed.__qualname__, keyed.__module__ = function.__qualname__, function.__module__
    return numba.njit(cache=True, nogil=True)(keyed)
