"""The one place that opens an HDF5 file, which is untrusted input.

Nothing is read before its type, shape and size are known to be what the caller expects;
links that leave the file (external links, external storage, virtual datasets) are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError

if TYPE_CHECKING:
    import h5py
    import numpy as np

MAX_DATASET_BYTES = 64 << 30


def require_file(path: Path, what: str) -> None:
    """Raise LenetError unless `path` is an existing file; `what` names what was expected."""
    if not path.exists():
        raise LenetError(f"{path}: expected {what}, found no such file")
    if not path.is_file():
        raise LenetError(f"{path}: expected {what}, found a folder or a device")


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open `path` for reading; LenetError where it is missing or not HDF5."""
    import h5py

    require_file(path, "an HDF5 file")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        size = path.stat().st_size
        kind = "an empty file" if size == 0 else f"{size} bytes that HDF5 cannot open"
        raise LenetError(f"{path}: expected an HDF5 file, found {kind}") from error
    with file:
        try:
            yield file
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise LenetError(
                f"{path}: expected a readable HDF5 file, found a damaged one ({reason})"
            ) from error


def attributes(path: Path) -> dict[str, str]:
    """Attributes of the root group as text, for `info` commands."""
    with open_hdf5(path) as file:
        return {str(key): str(value) for key, value in file.attrs.items()}


def read_array(
    file: h5py.File,
    name: str,
    expected: str,
    accepts: Callable[[tuple[int, ...]], bool],
    kinds: str,
) -> np.ndarray[Any, Any]:
    """Return dataset `name` whole, in native byte order.

    `accepts` judges the shape and `kinds` holds the NumPy kind letters allowed (as "fiu");
    `expected` says both in words. LenetError where the dataset is missing or is something else.
    """
    import h5py

    path = file.filename

    def refuse(found: str) -> LenetError:
        return LenetError(f"{path}: expected dataset /{name} to be {expected}, found {found}")

    link = file.get(name, getlink=True)
    if link is None:
        held = ", ".join(f"/{key}" for key in list(file)[:8]) or "nothing"
        raise refuse(f"no such dataset (the file holds {held})")
    if isinstance(link, h5py.ExternalLink):
        raise refuse("a link to another file")
    item = file.get(name)
    if not isinstance(item, h5py.Dataset):
        raise refuse("a broken link" if item is None else "a group")
    if item.is_virtual or item.external:
        raise refuse("data stored in other files")
    if item.shape is None or not accepts(item.shape):
        raise refuse(f"shape {item.shape}")
    if item.dtype.kind not in kinds:
        raise refuse(f"type {item.dtype}")
    if item.size * item.dtype.itemsize > MAX_DATASET_BYTES:
        raise refuse(f"{item.size * item.dtype.itemsize:,} bytes, more than {MAX_DATASET_BYTES:,}")
    try:
        array: np.ndarray[Any, Any] = item[()]
    except (OSError, MemoryError) as error:
        raise refuse(f"data that cannot be read ({error})") from error
    return array.astype(array.dtype.newbyteorder("="), copy=False)
