"""HDF5 files opened for reading: hard links, plain attributes, and nothing unlooked at.

HDF5 follows a soft link into other files, loads a plugin for a filter that it does not know, and
copies text of variable length by a length that the file gives twice. None of this is asked of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lenetgpu.errors import LenetError, first_line
from lenetgpu.files.disk import OpenFile
from lenetgpu.files.hdf5.new import later, library
from lenetgpu.files.hdf5.trees import require_trees
from lenetgpu.files.regular import open_regular

if TYPE_CHECKING:
    from typing import Self

    import h5py

    from lenetgpu.files.hdf5.stored import Stored

MAGIC = b"\x89HDF\r\n\x1a\n"
"""How an HDF5 file begins."""
MAX_TEXT_BYTES = 64_000
"""Of an attribute."""
MAX_ATTRIBUTES = 256
"""Names that are listed of one object."""
CLASSES = {
    2: "times",
    3: "text",
    4: "bits",
    5: "opaque bytes",
    6: "a compound type",
    7: "references",
    8: "an enumeration",
    9: "data of variable length",
    10: "an array type",
    11: "complex numbers",
}
"""HDF5's classes of types that are no numbers, as messages name them."""
_NUMBER_BYTES = 16
_MAX_NAME = 256
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

    def __exit__(self, *_: object) -> None:
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
        return linked(self.id, name, lambda f: self.refuse(name, expected, f)) is not None

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


def begins_later(file: BinaryIO) -> bool:
    """Whether HDF5 begins behind a block of the user's: at 512, 1,024, 2,048..."""
    at = 512
    while file.seek(at) and (found := file.read(len(MAGIC))):
        if found == MAGIC:
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
    h5py = library()
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


def attributes(path: Path) -> dict[str, str | None]:
    """Attributes of the root group as text; None for those not to be read: of variable length."""
    found: dict[str, str | None] = {}
    with open_hdf5(path) as file:
        for name in attribute_names(file):
            found[name] = None
            with suppress(LenetError):
                found[name] = str(attribute(file, name))
    return found


def linked(group: Any, name: str, refuse: Callable[[str], LenetError]) -> tuple[Any, bytes] | None:
    """The group that holds `name`'s last component, and that; None where there is no such thing.

    Nothing but hard links is followed, of which this raises what `refuse` makes.
    """
    import h5py

    parts = [part.encode() for part in name.split("/") if part]
    walked = b""
    for number, part in enumerate(parts, 1):
        walked += b"/" + part
        if not group.links.exists(part):
            return None
        kind = group.links.get_info(part).type
        if kind != h5py.h5l.TYPE_HARD:
            said = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "an external link"}
            raise refuse(f"{said.get(kind, 'a link of an unknown kind')} at {walked.decode()}")
        if number == len(parts):
            return group, part
        if h5py.h5o.get_info(group, part).type != h5py.h5o.TYPE_GROUP:
            return None
        group = h5py.h5g.open(group, part)
    return None


def attribute_names(holder: Any) -> list[str]:
    """Names of at most MAX_ATTRIBUTES attributes, none of which is read."""
    import h5py

    found: list[str] = []

    def note(name: bytes) -> bool | None:
        found.append(name[:_MAX_NAME].decode("utf-8", "replace"))
        return True if len(found) == MAX_ATTRIBUTES else None

    with later():
        h5py.h5a.iterate(holder.id, note)
    return found


def attribute(holder: Untrusted | Stored, name: str) -> str | int | float | None:
    """Attribute `name` of a file or a dataset; None where there is none.

    It is one number, or text of fixed length of at most MAX_TEXT_BYTES; LenetError for all else,
    unread: text of variable length (what h5py makes of a str, `set_text` does not) as well.
    """
    import h5py
    import numpy as np

    def refuse(found: str) -> LenetError:
        of = f" of {holder.where}" if holder.where else ""
        return LenetError(
            f"{holder.path}: expected attribute {name}{of} to be one number or text of fixed "
            f"length, found {found}"
        )

    if not h5py.h5a.exists(holder.id, name.encode()):
        return None
    opened = h5py.h5a.open(holder.id, name.encode())
    kind = opened.get_type()
    code, size = kind.get_class(), kind.get_size()
    text = code == h5py.h5t.STRING
    if text and kind.is_variable_str():
        raise refuse("text of variable length")
    if not text and code not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT):
        raise refuse(CLASSES.get(code, "an unknown type"))
    space = opened.get_space()
    items = space.get_simple_extent_npoints()
    if space.get_simple_extent_type() == h5py.h5s.NULL or items != 1:
        raise refuse(f"{items:,} items")
    most = MAX_TEXT_BYTES if text else _NUMBER_BYTES
    if size > most or opened.get_storage_size() != size:
        raise refuse(f"{max(size, opened.get_storage_size()):,} bytes, more than {most:,}")
    if text:
        raw = np.zeros((), f"S{size}")
        opened.read(raw, mtype=kind)
        return raw.tobytes().split(b"\0")[0].decode("utf-8", "replace")
    number = np.zeros((), kind.dtype)
    opened.read(number)
    value: int | float = number.item()
    return value
