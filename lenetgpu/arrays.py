"""NumPy and CuPy, imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import cupy
    import numpy as np

    Array = np.ndarray[Any, Any]
else:

    class _Lazy:
        def __init__(self, module):
            self._module = module

        def __getattr__(self, name):
            value = getattr(import_module(self._module), name)
            if self._module == "numpy":  # cached: every launch looks up types
                setattr(self, name, value)
            return value

    np, cupy, Array = _Lazy("numpy"), _Lazy("cupy"), Any

__all__ = ["Array", "cupy", "np"]
