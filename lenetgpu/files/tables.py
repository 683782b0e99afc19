"""Images read whole: tables in CSV (Kaggle) and Parquet (Hugging Face), `.npz` (Keras)."""

import io
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError, first_line, require_extra, unexpected
from lenetgpu.files import hdf5, reading
from lenetgpu.files.idx import read_labels as idx_labels
from lenetgpu.files.kinds import START, foreign
from lenetgpu.files.reading import PIXELS, MemorySource, check_memory, class_numbers
from lenetgpu.files.regular import MAGIC, open_regular, split, start_of
from lenetgpu.files.source import is_idx
from lenetgpu.network import IMAGE_SHAPE, PIXEL_SCALE

_LABELS = ("label", "labels", "class", "target", "y", "digit")  # names of a column of labels
_IMAGES = ("x", "x_test", "images", "test_images")  # names of arrays, the preferred ones first
_LINE = 1 << 16  # bytes that hold a table's first line
_SIDES = IMAGE_SHAPE[:2]


def in_memory(
    path: Path, images: Array, labels: Array | None, skip: int, limit: int | None
) -> MemorySource:
    """Return `limit` images after `skip` of arrays read whole; LenetError for unsupported ones."""
    if images.shape[1:] not in reading.ITEMS or images.dtype.kind not in "uf":
        expected = f"uint8 or float images of shape {reading.KNOWN_SHAPES}"
        raise unexpected(path, expected, f"{images.dtype} of shape {images.shape}")
    rows = reading.selected(path, len(images), skip, limit)
    part = images[rows.start : rows.stop].reshape(-1, *IMAGE_SHAPE)
    if part.dtype != np.uint8:
        floats = np.empty(part.shape, np.float32)
        reading.narrowed(part, floats)
        reading.check_floats(floats, rows.start, f"{path}: expected the images")
        part = floats
    if labels is not None:
        if len(labels) != len(images):
            raise unexpected(path, f"{len(images):,} labels", f"{len(labels):,}")
        labels = class_numbers(labels[rows.start : rows.stop], path, "the labels")
    return MemorySource(np.ascontiguousarray(part), labels, str(path))


@contextmanager
def _parsed(path: Path, expected: str) -> Iterator[None]:
    """Convert what libraries raise of damaged files to LenetError."""
    try:
        yield
    except LenetError:
        raise
    except Exception as error:  # of many kinds
        raise unexpected(path, expected, f"a damaged one ({first_line(error)})") from error


def open_csv(path: Path, skip: int, limit: int | None) -> MemorySource:
    """Open rows of 784 pixels, with a column of labels in front or by name, or without one."""
    with open_regular(path, "a CSV file") as file:
        line = file.read(_LINE).decode("utf-8-sig", "replace").partition("\n")[0]
        size = file.seek(0, 2)
    fields = [field.strip().strip('"').lower() for field in line.split(",")]
    header = any(not re.fullmatch(r"[\d.e+-]+", field) for field in fields)
    first = 0 if len(fields) == PIXELS + 1 else None
    at = next((number for number, name in enumerate(fields) if name in _LABELS), first)
    if len(fields) != PIXELS + (at is not None):
        expected = f"{PIXELS} columns of pixels, or one of labels and {PIXELS} of pixels"
        raise unexpected(path, expected, f"{len(fields):,}")
    check_memory(str(path), 2 * size, None)
    rows = _numbers(path, header)
    labels = None if at is None else rows[:, at]
    pixels = rows if at is None else np.delete(rows, at, axis=1)
    whole = bool(pixels.max() > 1) and not (pixels % 1).any() and pixels.max() <= PIXEL_SCALE
    return in_memory(path, pixels.astype(np.uint8 if whole else np.float32), labels, skip, limit)


def _numbers(path: Path, header: bool) -> Array:
    """Return a CSV file's rows as uint8, or float32 if some are not."""
    for dtype in np.uint8, np.float32:
        # NumPy warns when it truncates floats to integers
        with warnings.catch_warnings(), path.open(encoding="utf-8-sig") as file:
            warnings.simplefilter("error")
            try:
                return np.loadtxt(file, dtype, None, ",", None, int(header), ndmin=2, quotechar='"')
            except (ValueError, Warning, RuntimeError) as error:
                found = first_line(error)
    raise unexpected(path, "rows of as many numbers", found)


def open_npz(path: Path, name: str, skip: int, limit: int | None) -> MemorySource:
    """Open images of array `name` ("": x_test, or the only one) and their labels, as y_test."""
    with _parsed(path, "an .npz file"), open_regular(path, "an .npz file") as file:
        with zipfile.ZipFile(file) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
        names = [member[:-4] for member in sizes if member.endswith(".npy")]
        if not names:
            found = f"a zip archive of {', '.join(list(sizes)[:3]) or 'nothing'}; unpack it"
            raise unexpected(path, "an .npz file of arrays", found)
        only = names[0] if len(names) == 1 else ""
        chosen = name or next((known for known in _IMAGES if known in names), only)
        if chosen not in names:
            found = f"{', '.join(names[:8])}; name one as {path.name}:{names[0]}"
            raise unexpected(path, f"images as {name or ' or '.join(_IMAGES)}", found)
        labels = reading.label_name(chosen, names.__contains__)
        for member in filter(None, (chosen, labels)):
            check_memory(f"{path}: {member}", sizes[f"{member}.npy"], path.stat().st_size)
        file.seek(0)
        arrays = np.load(file, allow_pickle=False)
        images, known = arrays[chosen], arrays[labels] if labels else None
    return in_memory(path, images, known, skip, limit)


def open_parquet(path: Path, skip: int, limit: int | None) -> MemorySource:
    """Open a column `image` of encoded pictures (`bytes`) of 28x28, and a column `label`."""
    require_extra(f"{path}: a Parquet file", "pyarrow", "parquet")
    import pyarrow.parquet

    with _parsed(path, "a Parquet file of images"):
        file = pyarrow.parquet.ParquetFile(path, memory_map=True)
        names = file.schema_arrow.names
        if "image" not in names:
            found = ", ".join(names[:8])
            raise unexpected(path, "a column image with encoded pictures", found)
        rows = reading.selected(path, file.metadata.num_rows, skip, limit)
        label = next((name for name in names if name.lower() in _LABELS), None)
        table = file.read(["image", *filter(None, [label])]).slice(rows.start, len(rows))
        pictures = (row["bytes"] for row in table.column("image").to_pylist())
        images = np.stack([_decoded(path, picture) for picture in pictures])
        labels = None if label is None else table.column(label).to_numpy()
    return in_memory(path, images, labels, 0, None)


def _decoded(path: Path, picture: Any) -> Array:
    from PIL import Image

    with Image.open(io.BytesIO(picture), formats=["PNG", "JPEG"]) as image:
        if image.size != _SIDES:
            raise unexpected(path, "pictures of 28x28 pixels", "{}x{}".format(*image.size))
        return np.asarray(image.convert("L"))


def read_labels(path: Path, source: reading.Source, skip: int, limit: int | None) -> Array:
    """Return the labels (n,) int64 of images `source`, `limit` after `skip`, from another file.

    `.npy`, IDX, HDF5 or `.npz` (FILE:NAME), or text with a number a line. Raises LenetError unless
    they are class numbers, one for each image of the source's file.
    """
    (file, name), total = split(path), skip + len(source)
    start = start_of(file, "a file of labels", START)
    with _parsed(file, "a file of labels"):
        if start.startswith(MAGIC):
            with hdf5.open_hdf5(file) as opened:
                labels = hdf5.read_array(opened, name or "y", "labels", bool, "fiu")
        elif is_idx(start):
            count = None if limit else total
            return idx_labels(file, Path(source.source), count, range(skip, total))
        elif start.startswith((b"PK", b"\x93NUMPY")):
            held = np.load(file, allow_pickle=False)
            labels = held if start[:1] == b"\x93" else held[name or next(iter(held))]
        elif known := foreign(start, None):
            raise unexpected(path, "a file of labels", known)
        else:
            labels = _numbers(file, not re.match(rb'(\xef\xbb\xbf)?"?[\d.]', start))
    count = labels.shape[0] if labels.ndim else 0
    if count < total or (limit is None and count != total):
        raise unexpected(path, f"{total:,} labels for {source.source}", f"{count:,}")
    return class_numbers(labels[skip:total], path, "the labels")
