"""Chunks of an HDF5 dataset: where they lie, and what is in them, decoded without HDF5's lock.

What a chunk's filters make of it must have the chunk's declared size, to the byte: a chunk that
inflates to more or to less is refused, and nothing of it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError, first_line
from lenetgpu.files.hdf5.guard import DEFLATE, FLETCHER
from lenetgpu.files.inflate import broken, inflated

if TYPE_CHECKING:
    import numpy as np

    from lenetgpu.files.hdf5.stored import Stored

    Array = np.ndarray[Any, Any]

_CHECKSUM_BYTES = 4


class Chunks:
    """The chunks of a dataset that `find` found, called `where` in messages."""

    def __init__(self, item: Stored, where: str) -> None:
        assert item.chunks
        self._item, self._where = item, where
        self.shape = item.chunks
        self.bytes = item.chunk_bytes
        self._filters = item.filters

    def read(self, corner: tuple[int, ...]) -> Array:
        """The chunk whose first element is `corner`, (chunk shape), as the dataset's dtype."""
        stored, mask = self._stored(corner)
        data: Any = stored
        for index, (code, _) in reversed(list(enumerate(self._filters))):
            if mask >> index & 1:
                continue
            if code == FLETCHER:
                data = self._checked(data, corner)
            elif code == DEFLATE:
                data = self._inflated(data, self._deflated_from(index, mask), corner)
            else:
                data = self._unshuffled(data, corner)
        return self._item.native(self._sized(data, corner)).reshape(self.shape)

    def _stored(self, corner: tuple[int, ...]) -> tuple[Array, int]:
        """A chunk's bytes as they lie in the file, and which of its filters were left out.

        HDF5 is not asked where they lie: it answers by walking all chunks before this one.
        """
        import numpy as np
        from h5py._hl.base import phil

        most = min(self.bytes + self.bytes // 16 + 4096, self._item.file.size)
        room = np.empty(most, np.uint8)
        try:
            with phil:  # h5py before 3.16 does not take its lock here, and HDF5 has none
                mask, found = self._item.id.read_direct_chunk(corner, out=room)
        except ValueError as error:
            expected = f"of at most {len(room):,} bytes in the file"
            raise self.refuse(corner, expected, "more") from error
        except (RuntimeError, OSError) as error:
            reason = first_line(error)
            raise self.refuse(corner, "stored", f"one that cannot be read ({reason})") from error
        self._item.file.check_size()
        return room[: len(found)], int(mask)

    def _deflated_from(self, index: int, mask: int) -> int:
        """How many bytes filter `index` was given of a whole chunk."""
        before = [
            code for place, (code, _) in enumerate(self._filters[:index]) if not mask >> place & 1
        ]
        checksums: int = before.count(FLETCHER)
        return self.bytes + _CHECKSUM_BYTES * checksums

    def _inflated(self, data: Array, length: int, corner: tuple[int, ...]) -> Array:
        import numpy as np

        try:
            found, whole = inflated(data, length + 1)
        except broken() as error:
            raise self.refuse(corner, "that inflates", f"a damaged one ({error})") from error
        if len(found) != length or not whole:
            cut = f"{len(found):,}" if len(found) < length else "no end after them"
            more = "more" if len(found) > length else cut
            raise self.refuse(corner, f"that inflates to {length:,} bytes", more)
        return np.frombuffer(found, np.uint8)

    def _checked(self, data: Array, corner: tuple[int, ...]) -> Array:
        import numpy as np

        body, kept = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        found = fletcher32(body)
        if len(kept) < _CHECKSUM_BYTES or kept.view("<u4")[0] != found:
            said = kept.view("<u4")[0] if len(kept) == _CHECKSUM_BYTES else "none"
            raise self.refuse(corner, f"whose checksum is {found}", str(said))
        return np.ascontiguousarray(body)

    def _unshuffled(self, data: Array, corner: tuple[int, ...]) -> Array:
        import numpy as np

        size = self._item.width
        if size == 1:
            return data
        planes = self._sized(data, corner).reshape(size, -1)
        return np.ascontiguousarray(planes.T).reshape(-1)

    def _sized(self, data: Array, corner: tuple[int, ...]) -> Array:
        if len(data) != self.bytes:
            raise self.refuse(corner, f"of {self.bytes:,} bytes", f"{len(data):,}")
        return data

    def refuse(self, corner: tuple[int, ...], expected: str, found: str) -> LenetError:
        """What is said of one chunk."""
        return LenetError(
            f"{self._where} to have a chunk {expected} at image {corner[0]:,}, found {found}"
        )


def fletcher32(data: Array) -> int:
    """HDF5's checksum of bytes (n,): Fletcher's over big-endian words of 16 bits.

    A last odd byte counts as a word's upper half. Sums are modulo 65535, with 65535 for a zero that
    is not nothing but zeros.
    """
    import numpy as np

    words = np.zeros(-(-len(data) // 2), ">u2")
    words.view(np.uint8)[: len(data)] = data
    first, second = 0, 0
    step = 1 << 14
    falling = np.arange(step, 0, -1, dtype=np.uint64)
    for lo in range(0, len(words), step):
        part = words[lo : lo + step].astype(np.uint64)
        second += len(part) * first + int(part @ falling[step - len(part) :])
        first += int(part.sum())
    return (_folded(second) << 16) | _folded(first)


def _folded(total: int) -> int:
    return total % 65535 or (65535 if total else 0)
