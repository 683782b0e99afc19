"""What a sum is over, what a file says of its data sets, and how an array is compared with that."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError

if TYPE_CHECKING:
    import numpy as np

    from lenetgpu.files.hdf5 import Stored

    Array = np.ndarray[Any, Any]

ATTRIBUTE = "lenetgpu_sha256"
BEFORE = "sha256"
"""What the attribute was called at first, which others call theirs too."""
OF_BLOCKS = "_sha256"
"""What the name of a data set of blocks' sums ends in."""
NONE = "has no checksums: cannot tell damage"
BYTES = 32
_SHOWN, _NAMED = 12, 8


class Sum:
    """The SHA-256 of an array of this type and shape, given part by part."""

    def __init__(self, dtype: np.dtype[Any], shape: Iterable[int]) -> None:
        self._stored = dtype.newbyteorder("<")
        self._found = hashlib.sha256(f"{described(dtype, shape)}\n".encode())

    def add(self, part: Array) -> None:
        """The next elements, in C order."""
        import numpy as np

        self._found.update(np.ascontiguousarray(part, self._stored).data.cast("B"))

    def hex(self) -> str:
        """64 hexadecimal digits."""
        return self._found.hexdigest()


def described(dtype: np.dtype[Any], shape: Iterable[int]) -> str:
    """Type and shape as a sum has them: "<f4 5x5x1x32"."""
    return f"{dtype.newbyteorder('<').str} {'x'.join(map(str, shape))}"


def sum_of(array: Array) -> str:
    """The SHA-256 of an array, its type and shape, as hex."""
    whole = Sum(array.dtype, array.shape)
    whole.add(array)
    return whole.hex()


@dataclass(frozen=True)
class Sums:
    """What a file says of its data sets: SHA-256 as hex by name; of none, where it has no sums.

    `without` are the names in the root group that have none, and `whole` is whether names, shapes
    and attributes had one, and were compared. `where` and `noun` are what messages call a data set.
    """

    path: str
    stated: Mapping[str, str]
    without: tuple[str, ...] = ()
    whole: bool = True
    where: str = "dataset /"
    noun: str = "data set"

    def __bool__(self) -> bool:
        return bool(self.stated)

    def __contains__(self, name: str) -> bool:
        return name in self.stated

    def require(self, name: str, array: Array) -> None:
        """LenetError where data set `name`, read whole as `array`, is not what was written."""
        if name in self:
            self.compare(name, sum_of(array))

    def compare(self, name: str, found: str) -> None:
        """LenetError where `found` is not data set `name`'s sum."""
        compare(f"{self.path}: expected {self.where}{name}", self.stated[name], found)

    @property
    def said(self) -> str:
        """What is told of a file whose data sets were compared, as far as they have sums."""
        if not self:
            return NONE
        count = sum(not name.endswith(OF_BLOCKS) for name in self.stated)
        said = f"checksums right ({count} {self.noun}{'s' * (count > 1)})"
        if self.without:
            named = ", ".join(f"/{name}" for name in self.without[:_NAMED])
            more = len(self.without) - _NAMED
            named += f" and {more} more" * (more > 0)
            said += f"; {named} {'have' if self.without[1:] else 'has'} none: cannot tell damage"
        if not self.whole:
            said += "; names and attributes have none"
        return said


def compare(what: str, expected: str, found: str) -> None:
    """LenetError where two sums differ."""
    if found != expected:
        raise LenetError(
            f"{what} to have the SHA-256 {expected[:_SHOWN]}, "
            f"found {found[:_SHOWN]}: the file is damaged, or was changed since"
        )


class Blocks:
    """Sums of a data set's blocks of rows, to compare them in any order, by any thread."""

    def __init__(self, item: Stored, rows: int, table: Array) -> None:
        self._what = f"{item.path}: expected {item.where}"
        self._count, self._rows, self._table = item.shape[0], rows, table

    def require(self, first: int, block: Array) -> None:
        """LenetError where rows `first` on are not as written; `block` may go past the last."""
        rows = block[: self._count - first]
        expected = self._table[first // self._rows].tobytes().hex()
        what = f"{self._what}, rows {first:,} to {first + len(rows) - 1:,},"
        compare(what, expected, sum_of(rows))

    def require_all(self, first: int, rows: Array) -> None:
        """`require` of every block in `rows`, which begin with one."""
        for at in range(0, len(rows), self._rows):
            self.require(first + at, rows[at : at + self._rows])
