"""Functions compiled by Numba, in our cache: Numba's own has a pickled index.

An entry is a pickle too. It is read only if its digest matches, from a folder and a file that only
the user can write (`cache/`). Importing this module imports Numba.
"""

import inspect
import pickle
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import serialize
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult

from lenetgpu.store import entries

_KIND = "numba"


class NumbaCache(NullCache):
    """Cache of a Numba dispatcher, asked before and updated after a compilation; never raises."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        versions = numba.__version__, llvmlite.__version__, sys.version
        names = function.__module__, function.__qualname__
        # numbers and strings of the module that the function uses are compiled in
        known, plain = function.__globals__, (int, float, str, tuple)
        used = [n for n in function.__code__.co_names if isinstance(known.get(n), plain)]
        facts = "\0".join((*versions, *names, *(f"{n}={known[n]!r}" for n in used)))
        self._identity = facts.encode() + Path(inspect.getfile(function)).read_bytes()

    def _name(self, signature: Any, codegen: Any) -> str:
        target = f"\0{signature}\0{codegen.magic_tuple()}"
        key = sha256(self._identity + target.encode()).hexdigest()[:32]
        module = self._function.__module__.rpartition("lenetgpu.")[2]
        return f"{module}.{self._function.__name__}.{key}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the function compiled for `sig`, or None if it is not cached or damaged."""
        target_context.refresh()
        name = self._name(sig, target_context.codegen())
        data = entries.read(_KIND, name)
        if data is None:
            return None
        try:
            rebuild: Any = CompileResult._rebuild
            return rebuild(target_context, *pickle.loads(data))
        except Exception as error:  # the library does not match its version
            entries.refuse(_KIND, name, f"expected a function of Numba, found: {error!r}")
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Cache the function compiled for `sig`, unless it depends on this process."""
        if data.library.has_dynamic_globals or not all(x.can_cache for x in data.lifted):
            return
        try:
            dumps: Any = serialize.dumps
            pickled = dumps(data._reduce())
        except Exception as error:  # as above
            entries.refuse(_KIND, self._function.__name__, f"cannot be cached: {error!r}")
            return
        entries.write(_KIND, self._name(sig, data.codegen), pickled)
