"""The one place that opens an HDF5 file, which is untrusted input.

Nothing is read before its type, shape and size are known to be what the caller expects;
links that leave the file (external links, external storage, virtual datasets) are refused, and so
is what was never written, which HDF5 would read as zeros.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lenetgpu.errors import ENDING, LenetError

if TYPE_CHECKING:
    import h5py
    import numpy as np

MAX_DATASET_BYTES = 64 << 30
"""What is read whole may have so many."""
MAX_CHUNK_BYTES = 1 << 30
"""What is read of a dataset that is read by parts; a larger chunk is not taken anywhere."""
_CHUNK_CACHE_BYTES = 64 << 20


def require_file(path: Path, what: str) -> None:
    """Raise LenetError unless `path` is an existing file; `what` names what was expected."""
    try:
        found = "a folder or a device" if path.exists() else "no such file"
        if path.is_file():
            return
    except OSError as error:  # a name that is too long, a folder that may not be entered
        found = error.strerror or str(error)
    raise LenetError(f"{path}: expected {what}, found {found}")


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open `path` for reading; LenetError where it is missing or not HDF5."""
    with open_file(path) as file, readable(path):
        yield file
        require_size(file)


def open_file(path: Path) -> h5py.File:
    """`path` opened for reading, for the caller to close; LenetError as `open_hdf5`."""
    import h5py

    require_file(path, "an HDF5 file")
    try:
        return h5py.File(path, "r", rdcc_nbytes=_CHUNK_CACHE_BYTES)
    except OSError as error:
        size = path.stat().st_size
        kind = "an empty file" if size == 0 else f"{size} bytes that HDF5 cannot open"
        raise LenetError(f"{path}: expected an HDF5 file, found {kind}") from error


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """LenetError for whatever HDF5 raises within, which is a damaged file."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LenetError(
            f"{path}: expected a readable HDF5 file, found a damaged one ({reason})"
        ) from error


class _Patient:
    """A file open for writing that takes everything; the first error is kept for later.

    HDF5 2.0 dies of a signal when it closes a file on a disk that is full.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def check(self) -> None:
        """Raise what the disk had to say."""
        if self.error is not None:
            raise self.error

    def _tried(self, call: Callable[..., Any], otherwise: Any, *arguments: Any) -> Any:
        if self.error is not None:
            return otherwise
        try:
            return call(*arguments)
        except OSError as error:
            self.error = error
            return otherwise

    def tell(self) -> int:
        return int(self._tried(self._file.tell, 0))

    def seek(self, at: int, whence: int = 0) -> int:
        return int(self._tried(self._file.seek, 0, at, whence))

    def read(self, size: int) -> bytes:
        return bytes(self._tried(self._file.read, bytes(size), size))

    def write(self, data: Any) -> int:
        return int(self._tried(self._file.write, len(data), data))

    def truncate(self, size: int) -> int:
        return int(self._tried(self._file.truncate, size, size))

    def flush(self) -> None:
        self._tried(self._file.flush, None)


@contextmanager
def new_hdf5(target: IO[bytes]) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """A new HDF5 file in `target`, which is open for reading and writing, and a check.

    The check raises OSError where the disk has not taken what was written so far, and what a Ctrl-C
    raises that came since; so does the end. Whatever ends the block, HDF5 is done with `target`.
    """
    import h5py

    target.truncate(0)
    patient = _Patient(target)
    with _later() as interrupt:

        def check() -> None:
            interrupt()
            patient.check()

        with h5py.File(patient, "w") as file:
            yield file, check
    patient.check()
    target.flush()


@contextmanager
def _later() -> Iterator[Callable[[], None]]:
    """Ctrl-C, TERM and HUP wait until what is yielded is called, or for the end of the block.

    HDF5 cannot close a file of which a read or write has raised, and dies as the process ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # nothing is raised here
        return
    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    found = ((number, signal.getsignal(number)) for number in numbers)
    handlers = {number: handler for number, handler in found if callable(handler)}
    came: list[int] = []

    def interrupt() -> None:
        if came:
            handlers[came[0]](came.pop(0), sys._getframe())

    for number in handlers:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield interrupt
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        interrupt()


def require_size(file: h5py.File) -> None:
    """LenetError where a file is shorter than it was opened; HDF5 reads zeros past its end."""
    size_check(file)()


def size_check(file: h5py.File) -> Callable[[], None]:
    """`require_size` for many times, without HDF5's lock, while the file is open."""
    opened, handle, path = file.id.get_filesize(), file.id.get_vfd_handle(), file.filename

    def check() -> None:
        found = os.fstat(handle).st_size
        if found < opened:
            raise LenetError(
                f"{path}: expected a file of {opened:,} bytes, "
                f"found {found:,}: the file became shorter while it was read"
            )

    return check


def attributes(path: Path) -> dict[str, str]:
    """Attributes of the root group as text, for `info` commands."""
    with open_hdf5(path) as file:
        return {str(key): str(value) for key, value in file.attrs.items()}


def find(
    file: h5py.File,
    name: str,
    expected: str,
    accepts: Callable[[tuple[int, ...]], bool],
    kinds: str,
) -> h5py.Dataset:
    """Dataset `name` of this very file, of which nothing has been read.

    `accepts` judges the shape and `kinds` holds the NumPy kind letters allowed (as "fiu");
    `expected` says both in words. LenetError where the dataset is missing or is something else.
    """
    import h5py

    def refuse(found: str) -> LenetError:
        return refused(file, name, expected, found)

    link = file.get(name, getlink=True)
    if link is None:
        held = ", ".join(f"/{key}" for key in list(file)[:8]) or "nothing"
        raise refuse(f"no such dataset (the file holds {held})")
    if isinstance(link, h5py.ExternalLink):
        raise refuse("a link to another file")
    item = file.get(name)
    if not isinstance(item, h5py.Dataset):
        raise refuse("a broken link" if item is None else "a group")
    if h5py.h5o.get_info(item.id).fileno != h5py.h5o.get_info(file.id).fileno:
        raise refuse("a link to another file")
    if item.is_virtual or item.external:
        raise refuse("data stored in other files")
    if item.shape is None or not accepts(item.shape):
        raise refuse(f"shape {item.shape}")
    if item.dtype.kind not in kinds:
        raise refuse(f"type {item.dtype}")
    chunk = prod(item.chunks or ()) * item.dtype.itemsize
    if chunk > MAX_CHUNK_BYTES:
        raise refuse(f"chunks of {chunk:,} bytes, more than {MAX_CHUNK_BYTES:,}")
    return item


def require_written(file: h5py.File, name: str, expected: str, item: h5py.Dataset) -> None:
    """LenetError where a part of a dataset was never written; HDF5 would read zeros there."""
    if item.chunks is None:
        stored, wanted = int(item.id.get_storage_size() > 0), 1
    else:
        stored = item.id.get_num_chunks()
        wanted = prod(-(-n // c) for n, c in zip(item.shape, item.chunks, strict=True))
    if stored < wanted:
        raise refused(file, name, expected, f"{wanted - stored:,} of {wanted:,} parts not written")


def refused(file: h5py.File, name: str, expected: str, found: str) -> LenetError:
    """What is said of a dataset that is not as expected."""
    return LenetError(f"{file.filename}: expected dataset /{name} to be {expected}, found {found}")


def read_array(
    file: h5py.File,
    name: str,
    expected: str,
    accepts: Callable[[tuple[int, ...]], bool],
    kinds: str,
) -> np.ndarray[Any, Any]:
    """Return dataset `name` whole, in native byte order; arguments and LenetError as in `find`."""
    item = find(file, name, expected, accepts, kinds)
    length = item.size * item.dtype.itemsize
    if length > MAX_DATASET_BYTES:
        found = f"{length:,} bytes, more than {MAX_DATASET_BYTES:,}"
        raise refused(file, name, expected, found)
    require_written(file, name, expected, item)
    try:
        array: np.ndarray[Any, Any] = item[()]
    except (OSError, MemoryError) as error:
        raise refused(file, name, expected, f"data that cannot be read ({error})") from error
    return array.astype(array.dtype.newbyteorder("="), copy=False)
