"""Bytes of a file at any place, for several threads at once; images that lie there as they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lenetgpu.errors import LenetError
from lenetgpu.files.reading import BLOCK, Source, check_floats
from lenetgpu.files.regular import open_regular
from lenetgpu.network import IMAGE_SHAPE

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

PIXELS = IMAGE_SHAPE[0] * IMAGE_SHAPE[1]


class OpenFile:
    """A file open for reading; threads read it at their own places, without a lock."""

    def __init__(self, path: Path, file: BinaryIO | None = None) -> None:
        """Open `path`, or take `file` that is open already; LenetError where it cannot be read."""
        self.path = path
        self.file = open_regular(path, "a file to read") if file is None else file
        self.size = os.fstat(self.file.fileno()).st_size

    def read_into(self, out: memoryview, at: int) -> None:
        """Fill `out`, of bytes, from byte `at` on; LenetError where the file ends before."""
        done = 0
        try:
            while done < len(out):
                got = os.preadv(self.file.fileno(), [out[done:]], at + done)
                if not got:
                    raise LenetError(
                        f"{self.path}: expected {len(out):,} bytes from byte {at:,} on, "
                        f"found {done:,}: the file became shorter while it was read"
                    )
                done += got
        except OSError as error:
            raise LenetError(
                f"{self.path}: expected {len(out):,} readable bytes from byte {at:,} on, "
                f"found: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class RawSource(Source):
    """Images that lie in a file one after the other, uint8 or floats of any size and byte order.

    `where` names them in messages ("FILE: expected dataset /x"), `offset` is their first byte,
    `stored` their dtype in the file. They end within the file: who makes a source checks that.
    """

    def __init__(
        self,
        file: OpenFile,
        where: str,
        offset: int,
        stored: np.dtype[Any],
        labels: Array | None,
        chosen: range,
    ) -> None:
        name = "uint8" if stored.kind == "u" else "float32"
        super().__init__(str(file.path), name, labels, chosen)
        self._file, self._where, self._offset, self._stored = file, where, offset, stored

    def _fill(self, first: int, out: Array) -> None:
        import numpy as np

        size = PIXELS * self._stored.itemsize
        as_they_are = self._stored == out.dtype
        step = len(out) if self.dtype == "uint8" else BLOCK
        for lo in range(0, len(out), step):
            part = out[lo : lo + step]
            raw = part if as_they_are else np.empty(part.shape, self._stored)
            at = self._offset + (first + lo) * size
            self._file.read_into(raw.view(np.uint8).data.cast("B"), at)
            if raw is not part:
                narrowed(raw, part)
            if self.dtype == "float32":
                check_floats(part, first + lo, self._where)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def narrowed(raw: Array, out: Array) -> None:
    """Floats of any kind into float32 `out`; what is too large becomes infinite."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        out[...] = raw.reshape(out.shape)
