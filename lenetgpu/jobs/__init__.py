"""Classification of many files as one job: inputs, shards, workers and the manifest."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lenetgpu.errors import LenetError


@contextmanager
def expecting(what: str, path: Path | str) -> Iterator[None]:
    """Turn an OSError of the block into a LenetError: `path` was expected to be `what`."""
    try:
        yield
    except OSError as error:
        raise LenetError(f"{path}: expected {what}, found: {error.strerror}") from error
