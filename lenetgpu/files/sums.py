"""SHA-256 of arrays and the checksums stored in a file; `checksums.py` handles HDF5 files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError

ATTRIBUTE = "lenetgpu_sha256"
OF_BLOCKS = "_sha256"  # suffix of the name of a dataset of block checksums
NONE = "has no checksums: damage cannot be detected"
_SHOWN, _NAMED = 12, 8


class Sum:
    """The SHA-256 of an array of this type and shape, added part by part."""

    def __init__(self, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> None:
        self._stored = dtype.newbyteorder("<")
        self._digest = hashlib.sha256(f"{described(dtype, shape)}\n".encode())

    def add(self, part: Array) -> None:
        """Hash the next elements, in C order."""
        self._digest.update(np.ascontiguousarray(part, self._stored).data.cast("B"))

    def hex(self) -> str:
        """Return 64 hexadecimal digits."""
        return self._digest.hexdigest()


def described(dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> str:
    """Return the type and shape that a checksum covers: "<f4 5x5x1x32"."""
    return f"{dtype.newbyteorder('<').str} {'x'.join(map(str, shape))}"


def sum_of(array: Array) -> str:
    """Return the SHA-256 of an array, its type and shape, as hex."""
    checksum = Sum(array.dtype, array.shape)
    checksum.add(array)
    return checksum.hex()


@dataclass(frozen=True)
class Sums:
    """SHA-256 checksums stored in a file, as hex by dataset name; may be empty."""

    path: str
    stated: Mapping[str, str]
    without: tuple[str, ...] = ()  # names of datasets without checksum
    has_root: bool = True  # the file has one over names, shapes and attributes
    where: str = "dataset /"  # this and `noun` name a dataset in messages
    noun: str = "dataset"

    def __bool__(self) -> bool:
        return bool(self.stated)

    def __contains__(self, name: str) -> bool:
        return name in self.stated

    def require(self, name: str, array: Array) -> None:
        """Raise LenetError if dataset `name`, read whole as `array`, differs from its checksum."""
        if name in self:
            self.compare(name, sum_of(array))

    def compare(self, name: str, found: str) -> None:
        """Raise LenetError if `found` is not dataset `name`'s checksum."""
        compare(f"{self.path}: expected {self.where}{name}", self.stated[name], found)

    @property
    def summary(self) -> str:
        """Message for a file whose stored checksums were all verified."""
        if not self:
            return NONE
        count = sum(not name.endswith(OF_BLOCKS) for name in self.stated)
        text = f"checksums match ({count} {self.noun}{'s' * (count > 1)})"
        if self.without:
            names = ", ".join(f"/{name}" for name in self.without[:_NAMED])
            if (more := len(self.without) - _NAMED) > 0:
                names += f" and {more} more"
            have = "have" if self.without[1:] else "has"
            text += f"; {names} {have} none: damage cannot be detected"
        return text if self.has_root else f"{text}; names and attributes have none"


def compare(what: str, expected: str, found: str) -> None:
    """Raise LenetError if two checksums differ."""
    if found != expected:
        raise LenetError(
            f"{what} to have the SHA-256 {expected[:_SHOWN]}, "
            f"found {found[:_SHOWN]}: the file is damaged or was changed"
        )
