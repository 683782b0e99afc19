"""Images and weights rewritten in the project's own HDF5 form."""

from __future__ import annotations

import io
from pathlib import Path

from lenetgpu.files import hdf5
from lenetgpu.files.output import replacing, require_apart, require_folder
from lenetgpu.files.source import open_source
from lenetgpu.files.weights import load_weights
from lenetgpu.network import IMAGE_SHAPE
from lenetgpu.store import write_atomically

_CHUNK = 1_000


def convert_data(source: Path, target: Path) -> int:
    """Write `source`'s images (and labels) as /x and /y; returns the number of images.

    A chunk is in memory at a time. LenetError as for `open_source`, and for a full disk.
    """
    import numpy as np

    require_folder(target)
    require_apart(target, source)
    with open_source(source) as images, replacing(target) as made, made.open("w+b") as handle:
        count = len(images)
        chunk = np.empty((min(count, _CHUNK), *IMAGE_SHAPE), images.dtype)
        options = {"compression": "gzip", "shuffle": True, "track_times": False}
        shape = (count, *IMAGE_SHAPE)
        with hdf5.new_hdf5(handle) as (file, check):
            item = file.create_dataset("x", shape, images.dtype, chunks=chunk.shape, **options)
            for lo in range(0, count, len(chunk)):
                part = chunk[: count - lo]
                images.read(lo, part)
                item[lo : lo + len(part)] = part
                check()
            if images.labels is not None:
                file.create_dataset("y", data=images.labels.astype("uint8"), track_times=False)
    return count


def convert_weights(source: Path, target: Path) -> None:
    """Write `source`'s four arrays as float32, with what provenance there is."""
    require_folder(target)
    require_apart(target, source)
    weights = load_weights(source)
    buffer = io.BytesIO()
    with hdf5.new_hdf5(buffer) as (file, _):
        for name, tensor in weights.tensors.items():
            file.create_dataset(name, data=tensor, track_times=False)
        for name, text in hdf5.attributes(source).items():
            hdf5.set_text(file, name, text)
    write_atomically(target, buffer.getvalue())
