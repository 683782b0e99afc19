"""Reading of whole images and labels, from any file that `open_source` reads."""

from __future__ import annotations

from pathlib import Path

from lenetgpu.files.reading import Dataset
from lenetgpu.files.source import open_source

__all__ = ["Dataset", "load_dataset"]


def load_dataset(path: Path) -> Dataset:
    """Read images, and labels if present, from an HDF5, IDX (`.gz` or not) or .npy file.

    Raises LenetError naming the file, what was expected and what was found.
    """
    with open_source(path) as source:
        return source.whole()
