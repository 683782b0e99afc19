"""Conversion of images to the project's HDF5 layout, and of weights to any supported form."""

import io
from collections.abc import Mapping
from pathlib import Path

from lenetgpu.arrays import Array, np
from lenetgpu.files import checksums, hdf5
from lenetgpu.files.models import forms
from lenetgpu.files.output import replacing, require_apart, require_folder
from lenetgpu.files.source import open_source
from lenetgpu.files.weights import about, load_weights
from lenetgpu.network import IMAGE_SHAPE
from lenetgpu.store import write_atomically

_CHUNK = 1_000


def convert_data(source: Path, target: Path) -> int:
    """Write `source`'s images and labels as /x and /y, by parts; return the number of images."""
    require_folder(target)
    require_apart(target, source)
    with open_source(source) as images, replacing(target) as made, made.open("w+b") as handle:
        count = len(images)
        chunk = np.empty((min(count, _CHUNK), *IMAGE_SHAPE), images.dtype)
        shape = (count, *IMAGE_SHAPE)
        with hdf5.new_hdf5(handle) as (file, check):
            rows = checksums.Rows(
                file, "x", shape, images.dtype, _CHUNK, True, compression="gzip", shuffle=True
            )
            for lo in range(0, count, len(chunk)):
                part = chunk[: count - lo]
                images.read(lo, part)
                rows.add(part)
                check()
            if images.labels is not None:
                checksums.write(file, "y", images.labels.astype("uint8"))
            checksums.sum_up(file)
    return count


def convert_weights(source: Path, target: Path) -> str:
    """Write `source`'s four arrays as float32, with their provenance; return the target's form.

    The target's ending decides its form. Raises LenetError like `load_weights`, if the ending
    is unknown, and if the form requires a package that is not installed.
    """
    require_folder(target)
    require_apart(target, source)
    form = forms.require_target(target)
    weights, facts = load_weights(source), about(source).facts
    if form == forms.HDF5:
        write_weights(target, weights.tensors, facts)
    else:
        write_atomically(target, forms.written(target, form, weights.tensors, facts))
    return form


def write_weights(
    target: Path, tensors: Mapping[str, Array], provenance: Mapping[str, str | int | float]
) -> None:
    """Write weights by dataset name, with their provenance as attributes."""
    buffer = io.BytesIO()
    with hdf5.new_hdf5(buffer) as (file, _):
        for name, tensor in tensors.items():
            checksums.write(file, name, tensor)
        checksums.describe(file, provenance)
        checksums.sum_up(file)
    write_atomically(target, buffer.getvalue())
