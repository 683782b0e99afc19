"""Images from a file of any size, read by parts: HDF5, IDX (`.gz` or not) or `.npy`."""

from __future__ import annotations

import os
from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files import hdf5
from lenetgpu.files.hdf5_source import open_images
from lenetgpu.files.idx import open_idx, open_npy
from lenetgpu.files.inflate import GZIP_MAGIC
from lenetgpu.files.reading import Dataset, MemorySource, Source
from lenetgpu.files.regular import open_regular

__all__ = ["Dataset", "MemorySource", "Source", "open_source"]

_EXPECTED = "images in HDF5, IDX or .npy form"


def open_source(path: Path, skip: int = 0, limit: int | None = None) -> Source:
    """Open `limit` images (None: all) of a file after the first `skip`; nothing else is read.

    The first bytes decide what the file is, not its name. Raises LenetError naming the file, what
    was expected and what was found. Memory is bounded whatever the file's size, but for the labels
    of the images asked for, which are read at once.
    """
    try:
        with open_regular(path, _EXPECTED) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(len(hdf5.MAGIC))
            is_hdf5 = start == hdf5.MAGIC or hdf5.begins_later(file, size)
    except OSError as error:
        raise LenetError(f"{path}: expected a readable file, found: {error.strerror}") from error
    if start[:2] == GZIP_MAGIC or start[:3] == b"\0\0\x08":
        return open_idx(path, skip, limit)
    if start[:6] == b"\x93NUMPY":
        return open_npy(path, skip, limit)
    if not is_hdf5:
        found = f"{size:,} bytes of another form" if start else "an empty file"
        raise LenetError(f"{path}: expected {_EXPECTED}, found {found}")
    return open_images(path, skip, limit)
