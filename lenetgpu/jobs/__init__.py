"""Many files as one job: what is read, in which shards, by whom, and what is done already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lenetgpu.errors import LenetError


@contextmanager
def expecting(what: str, path: Path | str) -> Iterator[None]:
    """LenetError in place of the block's OSError: `path` was expected to be `what`."""
    try:
        yield
    except OSError as error:
        raise LenetError(f"{path}: expected {what}, found: {error.strerror}") from error
