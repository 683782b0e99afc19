"""Compilation by Numba or LLVM on first use, so that importing a variant costs nothing."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.store import entries

# Name prefix of plugins' modules; their functions are not cached.
PLUGIN_PREFIX = "_lenetgpu_plugin_"


class LazyJit:
    """Function that Numba compiles (nopython, no GIL) on its first call and caches on disk."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Callable[..., Any] | None = None
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any) -> Any:
        """Call the compiled function."""
        if self._compiled is None:
            try:
                import numba
            except (ValueError, RuntimeError) as error:  # of environment variables
                names = sorted(name for name in os.environ if name.startswith("NUMBA_"))
                found = f"{error} (of the environment: {', '.join(names) or 'nothing'})"
                raise ImportError(found, name="numba") from error
            from lenetgpu.cpu.numba_cache import NumbaCache

            compiled: Any = numba.njit(nogil=True)(self._function)
            ours = not self._function.__module__.startswith(PLUGIN_PREFIX)
            if ours and hasattr(compiled, "_cache"):  # not where NUMBA_DISABLE_JIT is set
                compiled._cache = NumbaCache(self._function)
            self._compiled = compiled
        return self._compiled(*args)


lazy_njit = LazyJit  # Decorator form.


@cache
def native(kernel: Any, *sources: str) -> Callable[..., None]:
    """Return `kernel`, an `Emitted`, as a native function of integers, cached or newly compiled.

    `sources` are the files outside cpu/ that define the kernel; their content is part of the
    cache key. A damaged cache entry is recompiled.
    """
    from lenetgpu.cpu import native as compiler

    contents = b"".join(Path(source).read_bytes() for source in sources)
    name = f"{kernel.name}.{compiler.key(kernel, contents)[:32]}"
    code = entries.read("cpu", name)
    if code is None:
        code = compiler.machine_code(kernel)
        entries.write("cpu", name, code)
    return compiler.load(kernel, code)


def addresses(*arrays: Any) -> tuple[int, ...]:
    """Return the addresses of NumPy arrays."""
    return tuple(array.ctypes.data for array in arrays)
