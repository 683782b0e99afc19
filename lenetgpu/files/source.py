"""Images from a file of any size, read by parts: HDF5, IDX (`.gz` or not) or `.npy`."""

from __future__ import annotations

from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files import hdf5
from lenetgpu.files.hdf5_source import open_images
from lenetgpu.files.idx import open_idx, open_npy
from lenetgpu.files.inflate import GZIP_MAGIC
from lenetgpu.files.reading import Dataset, MemorySource, Source

__all__ = ["Dataset", "MemorySource", "Source", "open_source"]


def open_source(path: Path, skip: int = 0, limit: int | None = None) -> Source:
    """Open `limit` images (None: all) of a file after the first `skip`; nothing else is read.

    The first bytes decide what the file is, not its name. Raises LenetError naming the file, what
    was expected and what was found. Memory is bounded whatever the file's size, but for the labels
    of the images asked for, which are read at once.
    """
    hdf5.require_file(path, "images in HDF5, IDX or .npy form")
    try:
        with path.open("rb") as file:
            start = file.read(6)
    except OSError as error:
        raise LenetError(f"{path}: expected a readable file, found: {error.strerror}") from error
    if start[:2] == GZIP_MAGIC or start[:3] == b"\0\0\x08":
        return open_idx(path, skip, limit)
    if start == b"\x93NUMPY":
        return open_npy(path, skip, limit)
    return open_images(path, skip, limit)
