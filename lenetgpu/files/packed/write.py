"""Files of packed images, written in one go or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from lenetgpu.errors import LenetError
from lenetgpu.files import checksums
from lenetgpu.files.hdf5 import new_hdf5
from lenetgpu.files.output import replacing, require_apart, require_folder
from lenetgpu.files.packed import source as form
from lenetgpu.files.packed.records import pack, said_of
from lenetgpu.files.source import open_source
from lenetgpu.network import IMAGE_SHAPE

if TYPE_CHECKING:
    from lenetgpu.files.reading import Source

_AT_ONCE = 16 * form.BLOCK
_COPIED = 8 << 20


@dataclass(frozen=True)
class Packed:
    """What a packed file holds: so many images, in so many bytes with all that it says of them."""

    images: int
    bytes: int

    @property
    def said(self) -> str:
        """Bytes an image beside those of its pixels."""
        return said_of(self.bytes / self.images)


def pack_data(
    path: Path, target: Path, progress: Callable[[int, int], None] | None = None
) -> Packed:
    """Write `path`'s uint8 images (and labels) to `target` as docs/packed.md says.

    `progress(done, total)` is told images. Memory is bounded but for the labels. LenetError where
    the images are floats, or `target` cannot be written: then it is what it was before.
    """
    require_folder(target)
    require_apart(target, path)
    if target.exists() and not target.is_file():
        raise LenetError(f"{target}: expected a file to write, found a device or a pipe")
    with open_source(path) as source:
        if source.dtype != "uint8":
            raise LenetError(
                f"{path}: expected uint8 pixels, which packing keeps as they are, "
                f"found {source.dtype}"
            )
        with replacing(target) as made, tempfile.TemporaryFile(dir=made.parent) as spool:
            index = _spooled(source, spool, progress)
            with made.open("w+b") as handle:
                _write(handle, spool, index)
        return Packed(len(source), target.stat().st_size)


def _spooled(
    source: Source, spool: BinaryIO, progress: Callable[[int, int], None] | None
) -> dict[str, Any]:
    """Every record into `spool`; the other datasets."""
    import numpy as np

    count = len(source)
    labels = None if source.labels is None else source.labels.astype(np.uint8)
    lengths, starts = np.empty(count, "<u2"), [0]
    sums: list[int] = []
    images = np.empty((min(_AT_ONCE, count), *IMAGE_SHAPE), np.uint8)
    for lo in range(0, count, _AT_ONCE):
        part = images[: count - lo]
        source.read(lo, part)
        records, found = pack(part)
        spool.write(records.data)
        lengths[lo : lo + len(part)] = found
        at = 0
        for first in range(lo, lo + len(part), form.BLOCK):
            block = slice(first, min(first + form.BLOCK, count))
            end = at + int(lengths[block].sum(dtype="i8"))
            facts = (count, len(sums), labels is not None)
            named = b"" if labels is None else labels[block]
            sums.append(form.checksum(facts, lengths[block], named, records[at:end]))
            starts.append(starts[-1] + end - at)
            at = end
        if progress is not None:
            progress(lo + len(part), count)
    made = {form.LENGTHS: lengths, form.STARTS: np.array(starts, "<u8"),
            form.SUMS: np.array(sums, "<u4")}  # fmt: skip
    return made if labels is None else made | {form.LABELS: labels}


def _write(handle: IO[bytes], spool: BinaryIO, index: dict[str, Any]) -> None:
    import numpy as np

    with new_hdf5(handle) as (file, check):
        file.attrs[form.ATTRIBUTE] = np.uint32(form.VERSION)
        file.attrs[form.BLOCK_ATTRIBUTE] = np.uint32(form.BLOCK)
        for dataset, values in index.items():
            item = file.create_dataset(dataset, data=values, track_times=False)
            checksums.state(item, checksums.sum_of(values))
        total = int(index[form.STARTS][-1])
        records = file.create_dataset(form.RECORDS, (total,), "u1", track_times=False)
        found = checksums.Sum(records.dtype, records.shape)
        spool.seek(0)
        for at in range(0, total, _COPIED):
            part = np.frombuffer(spool.read(_COPIED), np.uint8)
            records[at : at + len(part)] = part
            found.add(part)
            check()
        checksums.state(records, found.hex())
        checksums.sum_up(file)
