"""What of an HDF5 file may be touched: hard links, plain numbers, three filters, no plugins.

HDF5 follows a soft link into other files, loads a plugin for a filter that it does not know, and
copies text of variable length by a length that the file gives twice. None of this is asked of it.
"""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING, Any, Protocol

from lenetgpu.errors import LenetError
from lenetgpu.files.hdf5.later import later

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEFLATE, SHUFFLE, FLETCHER = 1, 2, 3
MAX_TEXT_BYTES = 64_000
"""Of an attribute."""
MAX_ATTRIBUTES = 256
"""Names that are listed of one object."""
_NUMBER_BYTES = 16
_MAX_NAME = 256

Filters = tuple[tuple[int, tuple[int, ...]], ...]
"""(code, values) of each filter, in the order in which they were applied."""


class Holder(Protocol):
    """What has attributes: an open file, or a dataset of it."""

    @property
    def id(self) -> Any:
        """HDF5's handle."""

    @property
    def path(self) -> Path:
        """The file, as messages name it."""

    @property
    def where(self) -> str:
        """The object within the file, as messages name it; "" of a file."""


def library() -> Any:
    """The module h5py, which is left no folder to look for plugins in for the rest of the process.

    While it is imported it asks for all that `uname` says, for which Python would run a program.
    """
    said = vars(platform.uname())
    primed = "h5py" not in sys.modules and "processor" not in said
    if primed:
        said["processor"] = ""
    try:
        import h5py
    finally:
        if primed:
            said.pop("processor", None)
    for index in reversed(range(h5py.h5pl.size())):
        h5py.h5pl.remove(index)
    return h5py


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


def dataset(group: Any, name: bytes, refuse: Callable[[str], LenetError]) -> Any:
    """HDF5's handle of dataset `name`, of which neither shape nor data were asked for.

    Raises what `refuse` makes of groups, of data that lie in other files, and of what is not
    numbers. The order matters: HDF5 opens other files to say the shape of a virtual dataset.
    """
    import h5py

    kind = h5py.h5o.get_info(group, name).type
    if kind != h5py.h5o.TYPE_DATASET:
        raise refuse("a group" if kind == h5py.h5o.TYPE_GROUP else "a type")
    found = h5py.h5d.open(group, name)
    plist = found.get_create_plist()
    inside = h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED
    if plist.get_layout() not in inside or plist.get_external_count():
        raise refuse("data stored in other files")
    code = found.get_type().get_class()
    if code not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT):
        raise refuse(f"{_CLASSES.get(code, 'an unknown type')}, which is not taken as numbers")
    return found


_CLASSES = {
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


def filters(plist: Any, width: int, refuse: Callable[[str], LenetError]) -> Filters:
    """The filters of a chunked dataset whose elements are stored in `width` bytes.

    Each is deflate, shuffle by that width or Fletcher's checksum, once at most; else this raises
    what `refuse` makes.
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    for index in range(plist.get_nfilters()):
        code, _, values, _ = plist.get_filter(index)
        if code not in (DEFLATE, SHUFFLE, FLETCHER):
            raise refuse(f"filter {code}, which is none of gzip, shuffle and fletcher32")
        if code in (earlier for earlier, _ in found):
            raise refuse(f"filter {code} twice")
        if code == SHUFFLE and tuple(values[:1]) != (width,):
            raise refuse(f"a shuffle by {list(values)} bytes of elements of {width}")
        found.append((int(code), tuple(values)))
    return tuple(found)


def attribute_names(holder: Holder) -> list[str]:
    """Names of at most MAX_ATTRIBUTES attributes, none of which is read."""
    import h5py

    found: list[str] = []

    def note(name: bytes) -> bool | None:
        found.append(name[:_MAX_NAME].decode("utf-8", "replace"))
        return True if len(found) == MAX_ATTRIBUTES else None

    with later():
        h5py.h5a.iterate(holder.id, note)
    return found


def attribute(holder: Holder, name: str) -> str | int | float | None:
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
        raise refuse(_CLASSES.get(code, "an unknown type"))
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
