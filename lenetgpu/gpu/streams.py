"""Streams of this package's own."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def _quiet(kind: type) -> Any:
    """CuPy's stream, whose destructor says nothing where the constructor failed.

    Once the GPU is lost the constructor raises before it sets what the destructor asks for: CuPy
    13's for `ptr`, 14's first for an owner elsewhere. They find here that nothing is to be freed.
    """
    return type("Stream", (kind,), {"ptr": 0, "_foreign_stream_ref": None})


def new_stream(**how: Any) -> Any:
    """A CuPy stream that does not wait for the default one; `how` as CuPy takes it."""
    import cupy

    return _quiet(cupy.cuda.Stream)(non_blocking=True, **how)
