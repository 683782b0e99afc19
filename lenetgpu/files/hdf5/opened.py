"""HDF5 files opened for reading: the file that was looked at, and nothing of it unlooked at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from lenetgpu.errors import LenetError, first_line
from lenetgpu.files.disk import OpenFile
from lenetgpu.files.hdf5 import guard
from lenetgpu.files.hdf5.later import later
from lenetgpu.files.hdf5.trees import require_trees
from lenetgpu.files.regular import open_regular

if TYPE_CHECKING:
    from typing import Self

    import h5py

MAGIC = b"\x89HDF\r\n\x1a\n"
"""How an HDF5 file begins."""
_OWN_FILES = "/proc/self/fd"


class Untrusted:
    """An HDF5 file open for reading, of which `find` and `attribute` hand out what is checked."""

    where = ""

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path, self._file = path, file
        self._handle: int = file.id.get_vfd_handle()
        self.size: int = file.id.get_filesize()
        """Bytes, when it was opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def id(self) -> Any:
        """HDF5's handle of the root group, through which links are followed unless looked at."""
        return self._file.id

    def refuse(self, name: str, expected: str, found: str) -> LenetError:
        """What is said of a dataset that is not as expected."""
        return LenetError(f"{self.path}: expected dataset /{name} to be {expected}, found {found}")

    def holds(self, name: str) -> bool:
        """Whether there is something under that name; LenetError for a link that is not hard."""
        expected = "a dataset of this file"
        return guard.linked(self.id, name, lambda f: self.refuse(name, expected, f)) is not None

    def holds_attribute(self, name: str) -> bool:
        """Whether the root group has an attribute of that name."""
        import h5py

        return bool(h5py.h5a.exists(self.id, name.encode()))

    def names(self, most: int) -> list[str]:
        """The first names in the root group; a byte that is no UTF-8 is a lone surrogate."""
        found: list[str] = []

        def note(name: bytes) -> bool | None:
            found.append(name.decode("utf-8", "surrogateescape"))
            return True if len(found) >= most else None

        with later():
            self.id.links.iterate(note)
        return found

    def check_size(self) -> None:
        """LenetError where the file became shorter, past whose end HDF5 reads zeros; no lock."""
        found = os.fstat(self._handle).st_size
        if found < self.size:
            raise LenetError(
                f"{self.path}: expected a file of {self.size:,} bytes, "
                f"found {found:,}: the file became shorter while it was read"
            )

    def bytes(self) -> OpenFile:
        """The very file that HDF5 has open, which another of its name may have replaced."""
        handle: BinaryIO = os.fdopen(os.dup(self._handle), "rb", buffering=0)
        return OpenFile(self.path, handle)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def begins_later(file: BinaryIO, size: int) -> bool:
    """Whether HDF5 begins behind a block of the user's: at 512, 1,024, 2,048..."""
    at = 512
    while at < size:
        file.seek(at)
        if file.read(len(MAGIC)) == MAGIC:
            return True
        at *= 2
    return False


@contextmanager
def open_hdf5(path: Path) -> Iterator[Untrusted]:
    """Open `path` for reading; LenetError where it is missing or not HDF5."""
    with open_file(path) as file, readable(path):
        yield file
        file.check_size()


def open_file(path: Path) -> Untrusted:
    """`path` opened for reading, for the caller to close; LenetError as `open_hdf5`."""
    with open_regular(path, "an HDF5 file") as looked_at:
        require_trees(path, looked_at)
        file = _opened(path, looked_at)
        try:
            own, found = os.fstat(looked_at.fileno()), os.fstat(file.id.get_vfd_handle())
            if not os.path.samestat(own, found):
                raise LenetError(f"{path}: expected one file, found another in its place")
            return Untrusted(path, file)
        except BaseException:
            file.close()
            raise


def _opened(path: Path, looked_at: BinaryIO) -> h5py.File:
    """The open file as HDF5 opens it: by its handle where the system can, else by its name."""
    h5py = guard.library()
    own = f"{_OWN_FILES}/{looked_at.fileno()}"
    try:
        return h5py.File(own if os.path.exists(own) else path, "r", driver="sec2")
    except OSError as error:
        size = os.fstat(looked_at.fileno()).st_size
        kind = "an empty file" if size == 0 else f"{size} bytes that HDF5 cannot open"
        if isinstance(error, BlockingIOError):
            kind = "one that another process has locked for writing"
        raise LenetError(f"{path}: expected an HDF5 file, found {kind}") from error


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """LenetError for whatever HDF5 raises within, which is a damaged file."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
        reason = first_line(error)
        raise LenetError(
            f"{path}: expected a readable HDF5 file, found a damaged one ({reason})"
        ) from error


def attributes(path: Path) -> dict[str, str]:
    """Attributes of the root group that may be read, as text."""
    with open_hdf5(path) as file:
        return {name: text for name, text in _attributes(file) if text is not None}


def unread_attributes(path: Path) -> list[str]:
    """Names of those that may not be read: of variable length, say."""
    with open_hdf5(path) as file:
        return [name for name, text in _attributes(file) if text is None]


def _attributes(file: Untrusted) -> Iterator[tuple[str, str | None]]:
    for name in guard.attribute_names(file):
        try:
            yield name, str(guard.attribute(file, name))
        except LenetError:
            yield name, None
