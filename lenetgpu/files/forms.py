"""Writers of labels to an open temporary file, one class per file form; labels arrive in parts."""

import csv
import io
import json
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import IO, Any

from lenetgpu.arrays import Array, np
from lenetgpu.errors import printable, require_extra
from lenetgpu.network import CLASSES
from lenetgpu.store import json_text

Names = Sequence[str] | None  # each image's file name, if images come from several files
# number of the first image in its dataset, or the number of each image
Numbers = int | Sequence[int]
# by position, why an image has no label (may grow during the run); None if every image has one
Failures = Mapping[int, str] | None
NO_LABEL = -1  # sentinel for a missing label
_COPY_BYTES = 4 << 20
_ROWS = 1 << 15
_FORMULAS = ("=", "+", "-", "@")
_SETS = (("labels", "<i4", ()), ("scores", "<f4", (CLASSES,)))


@dataclass
class Form(ABC):
    """Writer of labels (n,) int32, and of scores (n, 10) float32 if `with_scores`, to `file`."""

    file: IO[bytes]
    count: int  # of labels that are announced; fewer may come if the run is interrupted
    with_scores: bool
    first: Numbers = 0
    names: Names = None
    failures: Failures = None  # unless None, images may have the label NO_LABEL and NaN scores
    done: int = 0  # labels written so far

    @abstractmethod
    def __post_init__(self) -> None:
        """Write everything that precedes the labels."""

    @abstractmethod
    def add(self, labels: Array, scores: Array | None) -> None:
        """Write the next labels, starting at `done`."""

    def finish(self, requested: int | None) -> None:  # noqa: B027
        """Complete the file of `done` images; `requested` is given if the run was interrupted."""

    def close(self) -> None:  # noqa: B027
        """Release temporary files."""

    def numbers(self, count: int) -> Sequence[int]:
        """Return the numbers of the next `count` images in their datasets."""
        done, first = self.done, self.first
        if isinstance(first, int):
            return range(first + done, first + done + count)
        return first[done : done + count]


class _Npy(Form):
    """An array of labels, or of rows (label, scores); file names are not stored."""

    def __post_init__(self) -> None:
        row = [("label", "<i4"), ("scores", "<f4", (CLASSES,))]
        self._dtype = np.dtype(row if self.with_scores else np.int32)
        self._write_header(self.count)

    def _write_header(self, count: int) -> None:
        from numpy.lib import format as npy

        form = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (count,)}
        npy.write_array_header_1_0(self.file, form)

    def add(self, labels: Array, scores: Array | None) -> None:
        rows: Any = labels
        if self.with_scores:
            rows = np.empty(len(labels), self._dtype)
            rows["label"], rows["scores"] = labels, scores
        self.file.write(rows.data)

    def finish(self, requested: int | None) -> None:
        if self.done != self.count:
            self.file.seek(0)
            self._write_header(self.done)


def _no_formula(name: str) -> str:
    """Return the text, with a leading ' if a spreadsheet would read it as a formula."""
    return "'" * name.startswith(_FORMULAS) + printable(name)


def csv_rows(*rows: tuple[object, ...]) -> str:
    """Return CSV lines of `rows`, whose texts no spreadsheet reads as formulas."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [_no_formula(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return text.getvalue()


class _Csv(Form):
    """A line per image: its number, its file name if any, its label, its scores."""

    def __post_init__(self) -> None:
        columns = ["index", "label"] if self.names is None else ["index", "file", "label"]
        columns += [f"score{k}" for k in range(CLASSES)] if self.with_scores else []
        columns += [] if self.failures is None else ["error"]
        self.file.write((",".join(columns) + "\n").encode())

    def add(self, labels: Array, scores: Array | None) -> None:
        numbers = self.numbers(len(labels))
        heads: list[object] = list(numbers)
        if self.names is not None:
            names = self.names[self.done : self.done + len(numbers)]
            heads = [*csv_rows(*zip(numbers, names, strict=True)).splitlines()]
        end = "\n" if self.failures is None else ",\n"
        rows = zip(heads, labels.tolist(), strict=True)
        if scores is None:
            lines = [f"{head},{label}{end}" for head, label in rows]
        else:
            line = "%s,%d" + ",%.9g" * CLASSES + end
            scored = zip(rows, scores.tolist(), strict=True)
            lines = [line % (*row, *values) for row, values in scored]
        if self.failures is not None:
            empty = "," * (2 + CLASSES * self.with_scores)
            for at in (labels == NO_LABEL).nonzero()[0].tolist():
                lines[at] = f"{heads[at]}{empty}{csv_rows((self.failures[self.done + at],))}"
        self.file.write("".join(lines).encode())


class _Parts(Form):
    """Base of forms that hold labels and scores in temporary files until the end."""

    def __post_init__(self) -> None:
        folder, sets = os.path.dirname(self.file.name), _SETS[: 1 + self.with_scores]
        self._files = {name: tempfile.TemporaryFile(dir=folder) for name, *_ in sets}  # noqa: SIM115

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _Json(_Parts):
    """One object: `interrupted` and `images_asked` if so, `labels`, `scores`, `files`, `errors`.

    Missing labels are null; `errors`, if they are possible, says why, and is null for others.
    """

    def add(self, labels: Array, scores: Array | None) -> None:
        comma = ", " if self.done else ""
        numbers: list[int | None] = labels.tolist()
        if self.failures is not None:
            numbers = [None if label == NO_LABEL else label for label in numbers]
        self._files["labels"].write((comma + json.dumps(numbers)[1:-1]).encode())
        if scores is not None:
            rows = json_text(scores.astype(float).tolist())
            self._files["scores"].write((comma + rows[1:-1]).encode())

    def finish(self, requested: int | None) -> None:
        interrupted = f'{{"interrupted": true, "images_asked": {requested}, '
        start = "{" if requested is None else interrupted
        for name, file in self._files.items():
            self.file.write(f'{start}"{name}": ['.encode())
            file.seek(0)
            shutil.copyfileobj(file, self.file, _COPY_BYTES)
            self.file.write(b"]")
            start = ", "
        if self.names is not None:
            self.file.write(f', "files": {json.dumps(list(self.names[: self.done]))}'.encode())
        if self.failures is not None:
            errors = [self.failures.get(number) for number in range(self.done)]
            self.file.write(f', "errors": {json.dumps(errors)}'.encode())
        self.file.write(b"}")


class _H5(_Parts):
    """Datasets /labels and /scores with checksums; attributes if the run was interrupted.

    /files holds the names: rows of UTF-8 bytes as long as the longest name, padded with zeros.
    """

    def add(self, labels: Array, scores: Array | None) -> None:
        self._files["labels"].write(labels.data)
        if scores is not None:
            self._files["scores"].write(scores.data)

    def finish(self, requested: int | None) -> None:
        from lenetgpu.files import checksums, hdf5

        with hdf5.new_hdf5(self.file) as (file, check):
            for name, dtype, tail in _SETS[: len(self._files)]:
                stored = self._files[name]
                stored.seek(0)
                rows = checksums.Rows(file, name, (self.done, *tail), dtype, _ROWS)
                for lo in range(0, self.done, _ROWS):
                    count = min(_ROWS, self.done - lo)
                    data = stored.read(count * prod(tail) * np.dtype(dtype).itemsize)
                    rows.add(np.frombuffer(data, dtype).reshape(count, *tail))
                    check()
            if self.names is not None:
                names = [os.fsencode(name) for name in self.names[: self.done]]
                longest = max(1, *map(len, names))
                table = np.frombuffer(b"".join(n.ljust(longest, b"\0") for n in names), np.uint8)
                checksums.write(file, "files", table.reshape(len(names), longest))
            if requested is not None:
                file.attrs.update({"interrupted": True, "images_asked": requested})
            checksums.sum_up(file)


class _Parquet(Form):
    """Columns `file` (if named), `index`, `label`, scores, and `error` if labels may be missing."""

    def __post_init__(self) -> None:
        require_extra(".parquet", "pyarrow", "parquet")
        self._writer: Any = None

    def add(self, labels: Array, scores: Array | None) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {"index": pa.array(self.numbers(len(labels)), pa.int64())}
        if self.names is not None:
            names = self.names[self.done : self.done + len(labels)]
            columns = {"file": pa.array(map(printable, names)).dictionary_encode()} | columns
        missing = None if self.failures is None else labels == NO_LABEL
        columns["label"] = pa.array(labels, pa.int32(), mask=missing)
        if scores is not None:
            for k in range(CLASSES):
                columns[f"score{k}"] = pa.array(scores[:, k], pa.float32(), mask=missing)
        if self.failures is not None:
            reasons = map(self.failures.get, range(self.done, self.done + len(labels)))
            columns["error"] = pa.array(reasons, pa.string())
        rows = pa.table(columns)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.file, rows.schema)
        self._writer.write_table(rows)

    def finish(self, requested: int | None) -> None:
        if self._writer is None:
            empty = np.zeros((0, CLASSES), np.float32) if self.with_scores else None
            self.add(np.zeros(0, np.int32), empty)
        self._writer.close()


FORMS: dict[str, type[Form]] = {
    ".npy": _Npy, ".csv": _Csv, ".h5": _H5, ".json": _Json, ".parquet": _Parquet,
}  # fmt: skip
