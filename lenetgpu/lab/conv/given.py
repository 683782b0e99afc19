"""Convolutions as people have them: SHAPE, lines of benchdnn and MIOpenDriver, files, models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files.convs import benchdnn, miopen
from lenetgpu.files.convs.described import Described, Given
from lenetgpu.files.regular import read_whole
from lenetgpu.lab.conv.document import shape_text
from lenetgpu.papers.shapes import Row, Shape, Suite, images_of, row_of
from lenetgpu.problems import Conv, outputs

SHAPE = "C,H,W,M,K[,stride[,pad]]"
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_MOST_BYTES = 1 << 20
ALONE = "each convolution alone: without its bias, and without what follows it"
FUSED = "each convolution with its bias, and with the ReLU that alone follows it"
AS_SAID = "each convolution with the bias and the ReLU that its row names, and nothing else"


@dataclass(frozen=True)
class Wish:
    """What a command says of every convolution, whatever the place it is from says.

    `batch` and `dtype` None: as it is there. `epilogue`: a bias is taken that it has there, and of
    a model ReLU; `bias` and `relu` give it one.
    """

    batch: int | None = None
    bias: bool = False
    relu: bool = False
    dtype: str | None = None
    epilogue: bool = False

    def of(self, given: Given) -> Given:
        """A convolution as it is wished."""
        asked = given.asked
        if asked is None:
            return given
        asked = replace(
            asked, images=self.batch or asked.images, bias=self.bias or asked.bias,
            relu=self.relu or asked.relu, dtype=self.dtype or asked.dtype,
        )  # fmt: skip
        return replace(given, asked=asked)

    def of_row(self, row: Row) -> Row:
        """A row of a suite as it is wished; what a paper says of it is of the row as it was."""
        if not isinstance(row, Shape):
            return replace(row, given=self.of(row.given))
        problem = replace(
            row.problem, bias=self.bias or row.problem.bias, relu=self.relu or row.problem.relu,
            dtype=self.dtype or row.problem.dtype,
        )  # fmt: skip
        batch = self.batch or row.batch
        if (problem, batch) == (row.problem, row.batch):
            return row
        label = row.label.replace(images_of(row.batch), images_of(batch))
        return replace(row, label=label, problem=problem, batch=batch, paper="")


def is_benchdnn(text: str) -> bool:
    """Whether SHAPE is to be read as a line of benchdnn."""
    return benchdnn.BEGINS.match(text.strip()) is not None


def is_ours(text: str) -> bool:
    """Whether SHAPE is to be read as our own form, and not as another tool's line."""
    return not miopen.DRIVER.search(text) and not is_benchdnn(text)


def parse_shape(text: str, epilogue: bool = False) -> Given:
    """The convolution that SHAPE names, ours or another tool's; LenetError where it names none.

    With the bias that its tool gives it, where `epilogue` says so.
    """
    if miopen.DRIVER.search(text):
        return miopen.read(text, epilogue)
    if is_benchdnn(text):
        return benchdnn.read(text, epilogue)
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


def from_file(path: Path, wish: Wish) -> Suite:
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
            given = parse_shape(line.strip(), wish.epilogue)
        except LenetError as error:
            raise LenetError(f"{path}, line {number}: {error}") from error
        found.append(replace(given, name=given.name or f"line {number}"))
    if not found:
        raise LenetError(f"{path}: expected {what}, found none")
    return _suite(path, found, wish)


def from_model(path: Path, wish: Wish) -> Suite:
    """The convolutions of an ONNX model, each once with how often; LenetError for a bad file."""
    from lenetgpu.files.convs import onnx_convs

    found = onnx_convs.read(path, wish.batch, wish.epilogue)
    return _suite(path, found, replace(wish, batch=None))


def _suite(path: Path, found: Iterable[Given], wish: Wish) -> Suite:
    wished = [wish.of(given) for given in found]
    ends = any(g.asked is not None and (g.asked.bias or g.asked.relu) for g in wished)
    note = FUSED if wish.epilogue else ALONE
    if wish.bias or wish.relu or (ends and not wish.epilogue):
        note = AS_SAID
    title, rows = f"the convolutions of {path.name}", rows_of(wished)
    return Suite("", title, (), (), "", rows, notes=(note,), source=str(path))


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
