"""Images and weights rewritten in the project's own HDF5 form."""

from __future__ import annotations

import io
from pathlib import Path

from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.hdf5 import attributes
from lenetgpu.files.output import require_folder
from lenetgpu.files.weights import load_weights
from lenetgpu.store import write_atomically


def convert_data(source: Path, target: Path) -> int:
    """Write `source`'s images (and labels) as /x and /y; returns the number of images."""
    import h5py

    require_folder(target)
    dataset = load_dataset(source)
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        options = {"compression": "gzip", "shuffle": True, "track_times": False}
        file.create_dataset("x", data=dataset.images, chunks=True, **options)
        if dataset.labels is not None:
            file.create_dataset("y", data=dataset.labels.astype("uint8"), track_times=False)
    write_atomically(target, buffer.getvalue())
    return len(dataset)


def convert_weights(source: Path, target: Path) -> None:
    """Write `source`'s four arrays as float32, with what provenance there is."""
    import h5py

    require_folder(target)
    weights = load_weights(source)
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, tensor in weights.tensors.items():
            file.create_dataset(name, data=tensor, track_times=False)
        for name, text in attributes(source).items():
            file.attrs[name] = text
    write_atomically(target, buffer.getvalue())
