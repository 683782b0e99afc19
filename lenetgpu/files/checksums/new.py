"""Data sets written with their sums, and the sum over a file's names and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lenetgpu.files import hdf5
from lenetgpu.files.checksums.facts import sum_of_facts
from lenetgpu.files.checksums.stated import is_ours
from lenetgpu.files.checksums.sums import ATTRIBUTE, BYTES, OF_BLOCKS, Sum, sum_of

if TYPE_CHECKING:
    import h5py
    import numpy as np

    Array = np.ndarray[Any, Any]


class Rows:
    """A new data set of `file`, written from its first row to its last, `rows` at a time.

    With `by_blocks` the sums of its blocks come beside it. `options` are h5py's of a data set.
    """

    def __init__(
        self,
        file: h5py.File,
        name: str,
        shape: tuple[int, ...],
        dtype: Any,
        rows: int,
        by_blocks: bool = False,
        **options: Any,
    ) -> None:
        chunks = (max(1, min(rows, shape[0])), *shape[1:])
        self._file, self._name, self._by_blocks, self.rows = file, name, by_blocks, chunks[0]
        self._item = file.create_dataset(
            name, shape, dtype, chunks=chunks, fletcher32=True, track_times=False, **options
        )
        self._sum, self._of_blocks, self._done = Sum(self._item.dtype, shape), b"", 0

    def add(self, part: Array) -> None:
        """The next `rows` rows, or the last ones, which may be fewer; the last part ends it."""
        import numpy as np

        self._item[self._done : self._done + len(part)] = part
        self._sum.add(part)
        if self._by_blocks:
            self._of_blocks += bytes.fromhex(sum_of(part.astype(self._item.dtype, copy=False)))
        self._done += len(part)
        if self._done == len(self._item):
            state(self._item, self._sum.hex())
            if self._by_blocks:
                table = np.frombuffer(self._of_blocks, np.uint8).reshape(-1, BYTES)
                write(self._file, self._name + OF_BLOCKS, table)


def write(file: h5py.File, name: str, array: Array, **options: Any) -> None:
    """A new data set of one chunk, with its sum; `options` are h5py's of a data set."""
    Rows(file, name, array.shape, array.dtype, len(array), **options).add(array)


def state(owner: h5py.File | h5py.Dataset, digits: str) -> None:
    """Write a sum, 64 hexadecimal digits, into an attribute of what it is of."""
    import numpy as np

    owner.attrs[ATTRIBUTE] = np.bytes_(digits)


def describe(owner: h5py.File | h5py.Dataset, found: Mapping[str, Any]) -> None:
    """Write attributes such that they can be summed, text in a fixed length; sums are left out."""
    for name, value in found.items():
        text = value.decode() if isinstance(value, bytes) else value
        if is_ours(name, text):
            continue
        if isinstance(text, str):
            hdf5.set_text(owner, name, text)
        else:
            owner.attrs[name] = value


def sum_up(file: h5py.File) -> None:
    """The sum over names, types, shapes and attributes, when everything is written."""
    items = {name: file[name] for name in file}
    state(file, sum_of_facts(file, items, "a new file", ATTRIBUTE))
