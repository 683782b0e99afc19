"""Convolutions as people have them: SHAPE, lines of benchdnn and MIOpenDriver, files of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files.convs import benchdnn, miopen
from lenetgpu.files.convs.described import Given, convolution
from lenetgpu.files.regular import read_whole
from lenetgpu.lab.conv.document import shape_text
from lenetgpu.papers.shapes import Row, Shape, Untaken

SHAPE = "C,H,W,M,K[,stride[,pad]]"
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_MOST_BYTES = 1 << 20


def is_ours(text: str) -> bool:
    """Whether SHAPE is to be read as our own form, and not as another tool's line."""
    return not miopen.DRIVER.search(text) and not benchdnn.BEGINS.match(text.strip())


def parse_shape(text: str, epilogue: bool = False) -> Given:
    """The convolution that SHAPE names, ours or another tool's; LenetError where it names none.

    With the bias that its tool gives it, where `epilogue` says so.
    """
    if not is_ours(text):
        given = miopen.read(text) if miopen.DRIVER.search(text) else benchdnn.read(text)
        if epilogue or given.problem is None:
            return given
        return replace(given, problem=replace(given.problem, bias=False))
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
    stride, pad = (*map(int, words[5:]), *(1, 0)[len(words) - 5 :])
    sides = (int(taps[0]), int(taps[-1]))
    return Given(
        convolution(where, 1, (h, w, c, m), sides, stride=(stride, stride), pad=(pad, pad))
    )


def taken(text: str) -> Shape:
    """SHAPE as variants take it; LenetError where it is none, or not taken."""
    (row,) = rows_of([parse_shape(text)])
    if isinstance(row, Shape):
        return row
    raise LenetError(f"{text}: expected a convolution that is taken, found {row.why}")


def from_file(path: Path, epilogue: bool) -> Iterator[Given]:
    """The convolutions of a file, one a line in any form that SHAPE has; LenetError for a bad one.

    Blank lines, and those that begin with #, are skipped.
    """
    what = "convolutions, one a line"
    data = read_whole(path, f"a file of {what}", _MOST_BYTES, what)
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise LenetError(f"{path}: expected {what}, found text that is not UTF-8") from error
    numbered = [(n, line.strip()) for n, line in enumerate(lines, 1)]
    found = [(n, line) for n, line in numbered if line and not line.startswith("#")]
    if not found:
        raise LenetError(f"{path}: expected {what}, found none")
    for number, line in found:
        try:
            given = parse_shape(line, epilogue)
        except LenetError as error:
            raise LenetError(f"{path}, line {number}: {error}") from error
        yield replace(given, name=given.name or f"line {number}")


def rows_of(found: Iterable[Given]) -> tuple[Row, ...]:
    """Each convolution once, in the order that they come, with its first name and how often."""
    names: dict[Given, str] = {}
    counts: Counter[Given] = Counter()
    for given in found:
        plain = replace(given, name="")
        names.setdefault(plain, given.name)
        counts[plain] += 1
    rows: dict[str, Row] = {}
    for given, name in names.items():
        label = name or ("" if given.problem is None else shape_text(given.problem))
        while label in rows:
            label = f"{label} ({len(rows) + 1})"
        problem, images, count = given.problem, given.images, counts[given]
        if given.others or problem is None:
            rows[label] = Untaken(label, problem, images, given.why, count)
        else:
            rows[label] = Shape(label, problem, images, count=count)
    return tuple(rows.values())
