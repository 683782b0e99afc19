"""Convolutions as people have them: SHAPE, lines of benchdnn and MIOpenDriver, files, models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files.convs import benchdnn, miopen
from lenetgpu.files.convs.described import Described, Given
from lenetgpu.files.regular import read_whole
from lenetgpu.papers.shapes import Row, Shape, Suite, row_of
from lenetgpu.problems import Conv, outputs
from lenetgpu.show.conv_document import shape_text

SHAPE = "C,H,W,M,K[,stride[,pad]]"
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_MOST_BYTES = 1 << 20
ALONE = "each convolution alone: without its bias, and without what follows it"


def parse_shape(text: str) -> Given:
    """The convolution that SHAPE names, ours or another tool's; LenetError where it names none."""
    if miopen.DRIVER.search(text):
        return miopen.read(text)
    if benchdnn.BEGINS.match(text.strip()):
        return benchdnn.read(text)
    where = f"SHAPE {text!r}"
    words = [word.strip() for word in text.split(",")]
    taps = words[4].split("x") if len(words) > 4 else []
    numbers = [*words[:4], *taps, *words[5:]]
    if (
        not 5 <= len(words) <= 7
        or len(taps) > 2
        or not all(_NUMBER.fullmatch(word) for word in numbers)
    ):
        raise LenetError(f"{where}: expected {SHAPE} in whole numbers, as 64,56,56,64,3,1,1")
    c, h, w, m = map(int, words[:4])
    r, s = int(taps[0]), int(taps[-1])
    stride, pad = (*map(int, words[5:]), *(1, 0)[len(words) - 5 :])
    out = (outputs(h, r, max(stride, 1), 2 * pad), outputs(w, s, max(stride, 1), 2 * pad))
    asked = Described(1, h, w, c, m, r, s, out, (stride, stride), (pad, pad))
    asked.require(where)
    return Given(asked)


def taken(text: str) -> Shape:
    """SHAPE as variants take it; LenetError where it is none, or not taken."""
    (row,) = rows_of([parse_shape(text)])
    if isinstance(row, Shape):
        return row
    raise LenetError(f"{text}: expected a convolution that is taken, found {row.given.why}")


def from_file(path: Path, batch: int | None) -> Suite:
    """The convolutions of a file, one a line in any form that SHAPE has; LenetError for a bad one.

    Blank lines, and those that begin with #, are skipped.
    """
    what = "convolutions, one a line"
    data = read_whole(path, f"a file of {what}", _MOST_BYTES, what)
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise LenetError(f"{path}: expected {what}, found text that is not UTF-8") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            given = parse_shape(line.strip())
        except LenetError as error:
            raise LenetError(f"{path}, line {number}: {error}") from error
        found.append(replace(given, name=given.name or f"line {number}"))
    if not found:
        raise LenetError(f"{path}: expected {what}, found none")
    return _suite(path, [in_batches(given, batch) for given in found])


def from_model(path: Path, batch: int | None) -> Suite:
    """The convolutions of an ONNX model, each once with how often; LenetError for a bad file."""
    from lenetgpu.files.convs import onnx_convs

    return _suite(path, onnx_convs.read(path, batch))


def _suite(path: Path, found: Iterable[Given]) -> Suite:
    title = f"the convolutions of {path.name}"
    return Suite("", title, (), (), "", rows_of(found), notes=(ALONE,), source=str(path))


def in_batches(given: Given, batch: int | None) -> Given:
    """For `batch` images, where that is said."""
    if batch is None or given.asked is None:
        return given
    return replace(given, asked=replace(given.asked, images=batch))


def of_batch(row: Row, batch: int) -> Row:
    """A row for `batch` images."""
    if isinstance(row, Shape):
        return replace(row, batch=batch)
    return replace(row, given=in_batches(row.given, batch))


def rows_of(found: Iterable[Given]) -> tuple[Row, ...]:
    """Each convolution once, in the order that they come, with its first name and how often."""
    first: dict[tuple[int, Conv | None, tuple[str, ...]], Given] = {}
    counts: dict[tuple[int, Conv | None, tuple[str, ...]], int] = {}
    for given in found:
        asked = given.asked
        key = asked.images if asked else 0, asked.conv if asked else None, given.others
        first.setdefault(key, given)
        counts[key] = counts.get(key, 0) + 1
    rows, labels = [], set[str]()
    for key, given in first.items():
        label = given.name or shape_of(given)
        while label in labels:
            label = f"{label} ({len(labels) + 1})"
        labels.add(label)
        rows.append(row_of(label, given, counts[key]))
    return tuple(rows)


def shape_of(given: Given) -> str:
    """A convolution as the command takes it, where it can be said in a word."""
    return "" if given.asked is None else shape_text(given.asked.conv)
