"""Images and labels from HDF5 (the course's layout) and from IDX files (MNIST's)."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files import hdf5
from lenetgpu.network import CLASSES, IMAGE_SHAPE

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_HEIGHT, _WIDTH, _ = IMAGE_SHAPE
_IMAGE_MAGIC, _LABEL_MAGIC = 2051, 2049
_GZIP_MAGIC = b"\x1f\x8b"
MAX_IDX_BYTES = 16 << 30
_SLACK = 1e-3


@dataclass(frozen=True)
class Dataset:
    """`images` (N, 28, 28, 1), uint8 pixels or float32 in 0..1; `labels` (N,) int64 or None."""

    images: Array
    labels: Array | None
    source: str

    def __len__(self) -> int:
        return len(self.images)

    def head(self, limit: int | None) -> Dataset:
        """The first `limit` images, or all of them."""
        if limit is None or limit >= len(self):
            return self
        labels = None if self.labels is None else self.labels[:limit]
        return Dataset(self.images[:limit], labels, self.source)


def load_dataset(path: Path) -> Dataset:
    """Read images, and labels where there are any, from an HDF5 or IDX file (`.gz` or not).

    Raises LenetError naming the file, what was expected and what was found.
    """
    hdf5.require_file(path, "images in HDF5 or IDX form")
    with path.open("rb") as file:
        start = file.read(4)
    if start[:2] == _GZIP_MAGIC or start[:3] == b"\0\0\x08":
        return _load_idx(path)
    return _load_hdf5(path)


def _load_hdf5(path: Path) -> Dataset:
    import numpy as np

    plain, with_channel = (_HEIGHT, _WIDTH), IMAGE_SHAPE
    with hdf5.open_hdf5(path) as file:
        images = hdf5.read_array(
            file,
            "x",
            f"float or uint8 images of shape (N, {_HEIGHT}, {_WIDTH}) or "
            f"(N, {_HEIGHT}, {_WIDTH}, 1) with N at least 1",
            lambda s: len(s) in (3, 4) and s[0] > 0 and s[1:] in (plain, with_channel),
            "fu",
        )
        labels = None
        if "y" in file:
            n = len(images)
            labels = hdf5.read_array(
                file,
                "y",
                f"labels of shape ({n},) or one-hot of shape ({n}, {CLASSES})",
                lambda s: s in ((n,), (n, CLASSES), (n, 1)),
                "fiu",
            )
    images = images.reshape(-1, *IMAGE_SHAPE)
    if images.dtype != np.uint8:
        if images.dtype.kind == "u":
            raise LenetError(
                f"{path}: expected dataset /x to be float or uint8, found type {images.dtype}"
            )
        with np.errstate(over="ignore"):
            images = np.ascontiguousarray(images, dtype=np.float32)
        if not np.isfinite(images).all():
            raise LenetError(f"{path}: expected dataset /x to be finite, found NaN or infinity")
        low, high = float(images.min()), float(images.max())
        if low < -_SLACK or high > 1 + _SLACK:
            raise LenetError(
                f"{path}: expected dataset /x to hold floats in 0..1 (or uint8 pixels), "
                f"found {low:g} to {high:g}"
            )
    if labels is not None:
        labels = _class_numbers(labels, path, "/y")
    return Dataset(images, labels, str(path))


def _class_numbers(labels: Array, path: Path, where: str) -> Array:
    import numpy as np

    if labels.ndim == 2 and labels.shape[1] == CLASSES:
        one_hot = (labels == 1).sum(axis=1) == 1
        if not (one_hot & ((labels == 0).sum(axis=1) == CLASSES - 1)).all():
            raise LenetError(f"{path}: expected {where} to be one-hot rows, found other values")
        one_hot_classes: Array = labels.argmax(axis=1).astype(np.int64)
        return one_hot_classes
    flat = labels.reshape(-1)
    with np.errstate(invalid="ignore"):
        numbers: Array = flat.astype(np.int64)
    if (numbers != flat).any() or numbers.min() < 0 or numbers.max() >= CLASSES:
        raise LenetError(
            f"{path}: expected {where} to hold class numbers 0..{CLASSES - 1}, "
            f"found {flat.min()} to {flat.max()}"
        )
    return numbers


def _read_idx(path: Path, magic: int, item: tuple[int, ...], what: str) -> Array:
    """IDX file of uint8 items of shape `item`; the header is checked before the body is read."""
    import numpy as np

    expected = f"an IDX file of {what}"
    with path.open("rb") as probe:
        zipped = probe.read(2) == _GZIP_MAGIC
    rank = 1 + len(item)
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            header = file.read(4 + 4 * rank)
            if len(header) < 4 + 4 * rank:
                raise LenetError(f"{path}: expected {expected}, found only {len(header)} bytes")
            found, count, *shape = np.frombuffer(header, ">u4").tolist()
            if found != magic:
                raise LenetError(
                    f"{path}: expected {expected} (magic number {magic}), found {found}"
                )
            if tuple(shape) != item:
                size = "x".join(map(str, shape))
                raise LenetError(
                    f"{path}: expected {expected} of {'x'.join(map(str, item))}, found {size}"
                )
            if count == 0:
                raise LenetError(f"{path}: expected {expected}, found zero of them")
            length = count * int(np.prod(item, initial=1))
            if length > MAX_IDX_BYTES:
                raise LenetError(
                    f"{path}: expected at most {MAX_IDX_BYTES:,} bytes, found {length:,}"
                )
            on_disk = path.stat().st_size - len(header)
            if not zipped and on_disk < length:
                raise LenetError(
                    f"{path}: expected {length:,} bytes after the header for {count:,} {what}, "
                    f"found {on_disk:,}"
                )
            body = file.read(length + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise LenetError(f"{path}: expected {expected}, found a damaged file ({error})") from error
    if len(body) != length:
        more = "more" if len(body) > length else f"{len(body):,}"
        raise LenetError(
            f"{path}: expected {length:,} bytes after the header for {count:,} {what}, found {more}"
        )
    return np.frombuffer(body, np.uint8).reshape(count, *item)


def _label_file(images: Path) -> Path | None:
    """The label file beside an image file, by MNIST's naming, packed or not."""
    if "images" not in images.name:
        return None
    for rank_from, rank_to in (("idx3", "idx1"), ("", "")):
        name = images.name.replace("images", "labels")
        name = name.replace(rank_from, rank_to) if rank_from else name
        stem = name.removesuffix(".gz")
        for candidate in (name, stem, f"{stem}.gz"):
            path = images.with_name(candidate)
            if path.is_file() and path != images:
                return path
    return None


def _load_idx(path: Path) -> Dataset:
    import numpy as np

    images = _read_idx(path, _IMAGE_MAGIC, (_HEIGHT, _WIDTH), "images")
    labels = None
    beside = _label_file(path)
    if beside is not None:
        raw = _read_idx(beside, _LABEL_MAGIC, (), "labels")
        if len(raw) != len(images):
            raise LenetError(
                f"{beside}: expected {len(images):,} labels for {path.name}, found {len(raw):,}"
            )
        labels = _class_numbers(raw.astype(np.int64), beside, "the labels")
    return Dataset(images.reshape(-1, *IMAGE_SHAPE), labels, str(path))
