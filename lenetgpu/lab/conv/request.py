"""Requests of `lenetgpu conv`: SHAPE, another tool's line, a suite, a file or a model."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lenetgpu.check.reference import CHECK_IMAGES
from lenetgpu.dispatch.algorithms import TILED
from lenetgpu.errors import LenetError, choose
from lenetgpu.files.convs import benchdnn, miopen, verbose
from lenetgpu.files.convs.described import Given, convolution, require_countable
from lenetgpu.files.regular import read_whole
from lenetgpu.gpu import machines
from lenetgpu.lab.compare import Asked
from lenetgpu.lab.conv.document import network_json, shape_text, suite_json
from lenetgpu.measure.document import SCHEMA
from lenetgpu.papers.shapes import SUITES, Row, Shape, Suite, Unsupported, images_of
from lenetgpu.problems import ITEM_BYTES, Conv

SHAPE = "C,H,W,M,K[,stride[,pad]]"
_OURS = re.compile("N,N,N,N,N(?:xN)?(?:,N(?:,N)?)?".replace("N", r"\s*(-?[0-9]{1,9})\s*"))
_MOST_BYTES = 1 << 24
_MOST_ELEMENTS = 256**2  # of a filter: the check's float64 sum adds them one by one
_MOST_CHECKED = 2 * 10**12  # FLOP of the check on a CPU: some minutes

ALONE = "each convolution without its bias and without the operators after it"
FUSED = "each convolution with its bias, and with its ReLU if nothing else reads the sums"
AS_LISTED = "each convolution with the bias and the ReLU that its row names, and nothing else"
# Fields of a request on how a shape is measured, not on where results go.
_METHOD = ("device", "seconds", "rounds", "warmup", "watch", "cold_l2", "bitwise", "baseline")


@dataclass(frozen=True)
class ConvRequest(Asked):
    """A request to `lenetgpu conv`; a `batch` or `dtype` of None keeps that of each convolution."""

    seconds: float = 1.0
    shape: str | None = None
    suite: str | None = None
    batch: int | None = None
    lines: Path | None = None  # a file with one convolution per line
    model: Path | None = None  # an ONNX model
    inputs: tuple[str, ...] = ()  # the model's, as NAME:1x3x224x224
    bias: bool = False  # add one to every convolution; relu: likewise
    relu: bool = False
    dtype: str | None = None
    epilogue: bool = False  # keep the source's bias and ReLU
    explain: bool = False
    machine: str | None = None  # known GPU that `explain` plans for
    bitwise: bool = False
    tune: bool = False  # cache the fastest algorithm of each shape

    def images(self, usual: int) -> int:
        """Return the requested number of images, or `usual`; raise LenetError if it is below 1."""
        if self.batch is not None and self.batch < 1:
            raise LenetError(f"--batch: expected at least 1 image, found {self.batch}")
        return self.batch or usual

    def adapted(self, problem: Conv) -> Conv:
        """Return a problem with the requested bias, ReLU and dtype."""
        bias, relu = self.bias or problem.bias, self.relu or problem.relu
        return replace(problem, bias=bias, relu=relu, dtype=self.dtype or problem.dtype)


def is_ours(text: str) -> bool:
    """Return True if SHAPE is in our own form, not another tool's line."""
    others = (miopen.DRIVER.search, verbose.LINE.search, benchdnn.BEGINS.match)
    return not any(begins(text.strip()) for begins in others)


def parse_shape(text: str, epilogue: bool = False) -> Given:
    """Return SHAPE's convolution, with its bias if `epilogue`; LenetError if it is invalid."""
    given = None if is_ours(text) else _others_line(text, epilogue)
    if given is not None:
        return given
    where, match = f"SHAPE {text!r}", _OURS.fullmatch(text)
    if match is None:
        raise LenetError(f"{where}: expected {SHAPE} as integers, such as 64,56,56,64,3,1,1")
    *sizes, columns, stride, pad = match.groups()
    c, h, w, m, rows = map(int, sizes)
    sides, by, around = (rows, int(columns or rows)), int(stride or 1), int(pad or 0)
    return Given(convolution(where, (1, h, w, c, m), sides, stride=(by, by), pad=(around, around)))


def _others_line(text: str, epilogue: bool, knobs: dict[str, str] | None = None) -> Given | None:
    """Return the convolution of another tool's line; None if it has knobs or events only."""
    if miopen.DRIVER.search(text):
        given: Given | None = miopen.read(text)
    elif verbose.LINE.search(text):
        given = verbose.read(text)
    else:
        given = benchdnn.read(text, knobs)
    if epilogue or given is None or given.problem is None:
        return given
    return replace(given, problem=replace(given.problem, bias=False))


def shape_of(text: str) -> Shape:
    """Return SHAPE as a supported shape; raise LenetError if it is invalid or not supported."""
    (row,) = rows_of([parse_shape(text)])
    if isinstance(row, Shape):
        return row
    raise LenetError(f"{text}: expected a supported convolution, found {row.why}")


def from_file(path: Path, epilogue: bool) -> list[Given]:
    """Return a file's convolutions, one per line; an invalid line has no problem but a reason.

    A # after white space begins a comment. Raises LenetError if no line is a convolution.
    """
    content = "convolutions, one per line"
    data = read_whole(path, f"a file of {content}", _MOST_BYTES, content)
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise LenetError(f"{path}: expected {content}, found text that is not UTF-8") from error
    found, knobs = list[Given](), dict[str, str]()
    for number, text in enumerate(lines, 1):
        line = re.sub(r"(^|\s)#.*", "", text).strip()
        if not line:
            continue
        try:
            given = _others_line(line, epilogue, knobs) if not is_ours(line) else parse_shape(line)
        except LenetError as error:
            given = Given(None, others=("expected" + str(error).partition(": expected")[2],))
        if given is not None:
            found.append(replace(given, name=given.name or f"line {number}"))
    if not found:
        raise LenetError(f"{path}: expected {content}, found none")
    return found


def rows_of(convolutions: Iterable[Given]) -> tuple[Row, ...]:
    """Return the distinct convolutions in order, each with its first name and its count."""
    named = [(replace(given, name=""), given.name) for given in convolutions]
    counts, names = Counter(given for given, _ in named), dict(reversed(named))
    rows: dict[str, Row] = {}
    for given, count in counts.items():
        label = names[given] or ("" if given.problem is None else shape_text(given.problem))
        while label in rows:
            label = f"{label} ({len(rows) + 1})"
        if given.others or given.problem is None:
            rows[label] = Unsupported(label, given.problem, given.images, given.why, count)
        else:
            rows[label] = Shape(label, given.problem, given.images, count=count)
    return tuple(rows.values())


def _of_suite(request: ConvRequest) -> tuple[Suite, tuple[Row, ...]]:
    """Return the named suite and its rows; the paper's claims stay only with unchanged rows."""
    if (suite := SUITES.get(name := str(request.suite))) is None:
        raise LenetError(f"suite {name!r} does not exist; {choose(name, SUITES)}")
    rows: dict[Row, None] = {}
    for shape in suite.shapes:
        problem, batch = request.adapted(shape.problem), request.batch or shape.batch
        if (problem, batch) != (shape.problem, shape.batch):
            label = shape.label.replace(images_of(shape.batch), images_of(batch))
            shape = replace(shape, label=label, problem=problem, batch=batch, paper="")
        rows[shape] = None
    if tuple(rows) != suite.rows:
        suite = replace(suite, rows=tuple(rows), says="", claim=None)
    return suite, suite.rows


def _of_others(request: ConvRequest) -> tuple[Suite | None, tuple[Row, ...]]:
    """Return a shape's row, or a suite made of the rows of a file or a model."""
    source: Iterable[Given]
    path, batch = request.lines or request.model, request.batch
    if request.shape is not None:
        source = [parse_shape(request.shape, request.epilogue)]
    elif request.lines is not None:
        source = from_file(request.lines, request.epilogue)
    else:
        from lenetgpu.files.convs import onnx_convs

        assert request.model is not None
        source = onnx_convs.read(request.model, batch, request.epilogue, request.inputs)
        batch = None  # `read` has applied it
    given = []
    for one in source:
        if one.problem is not None:
            one = replace(one, problem=request.adapted(one.problem), images=batch or one.images)
        given.append(one)
    rows = rows_of(given)
    if path is None:
        return None, rows
    fused = any(row.problem and row.problem.requires & {"bias", "relu"} for row in rows)
    note = FUSED if request.epilogue else ALONE
    if request.bias or request.relu or (fused and not request.epilogue):
        note = AS_LISTED
    title = f"the convolutions of {path.name}"
    return Suite("", title, (), (), "", rows, notes=(note,), source=str(path)), rows


def check_size(problem: Conv, images: int, where: str, device: str) -> None:
    """Raise LenetError if a float64 reference would take hours on `device` ("cpu" or "cuda")."""
    flop = problem.flop(min(images, CHECK_IMAGES))
    if problem.R * problem.S > _MOST_ELEMENTS:
        expected = f"expected filters of at most {_MOST_ELEMENTS:,} elements"
        raise LenetError(f"{where}: {expected}, found {problem.R:,}x{problem.S:,}")
    if device == "cpu" and flop > _MOST_CHECKED:
        expected = f"expected at most {_MOST_CHECKED:.0e} operations to check on a CPU"
        raise LenetError(f"{where}: {expected}, found {flop:.1e}")


def checkable(request: ConvRequest, rows: list[Row], device: str) -> list[Row]:
    """Return `rows`; those of a file or model that `check_size` refuses become unsupported."""
    return _require_supported(_fitting(request, rows, partial(check_size, device=device)))


def _fitting(request: ConvRequest, rows: Iterable[Row], check: Callable[..., None]) -> list[Row]:
    fits = list[Row]()
    for row in rows:
        try:
            if isinstance(row, Shape):
                where = f"conv {shape_text(row.problem)}, batch {row.batch}"
                check(row.problem, row.batch, where)
        except LenetError as error:
            if not (request.lines or request.model):
                raise
            why = str(error).partition(": ")[2]
            row = Unsupported(row.label, row.problem, row.batch, why, row.count)
        fits.append(row)
    return fits


def rows_asked(request: ConvRequest) -> tuple[Suite | None, list[Row]]:
    """Return the requested rows, supported or not; raise LenetError if nothing is requested."""
    ways = {
        f"SHAPE ({SHAPE})": request.shape, "--suite NAME": request.suite,
        "--from FILE": request.lines, "--model FILE": request.model,
    }  # fmt: skip
    given = [name.split()[0] for name, value in ways.items() if value is not None]
    if len(given) != 1:
        *others, last = ways
        found = f", not {' and '.join(given)}" if given else ""
        one = "only one" if given else "one"
        raise LenetError(f"conv: give {one} of {', '.join(others)} or {last}{found}")
    request.images(1)
    if request.inputs and request.model is None:
        raise LenetError("--input: requires --model; add it")
    if request.dtype not in (None, *ITEM_BYTES):
        hint = choose(str(request.dtype), ITEM_BYTES)
        raise LenetError(f"dtype {request.dtype!r} does not exist; {hint}")
    plain = request.suite or (request.shape and is_ours(request.shape) and request.shape)
    if request.epilogue and plain:
        raise LenetError(
            f"--epilogue: expected another tool's line, a file of lines or a model, found {plain}; "
            "use --bias and --relu for it"
        )
    suite, rows = _of_others(request) if request.suite is None else _of_suite(request)
    return suite, _fitting(request, rows, require_countable)


def rows_to_run(request: ConvRequest) -> tuple[Suite | None, list[Row]]:
    """Return the requested rows, at least one of them supported; raise LenetError if invalid."""
    request.check()
    if request.machine is not None:
        machines.known(request.machine)
        if not request.explain:
            raise LenetError(f"--as {request.machine}: requires --explain; add it")
    suite, rows = rows_asked(request)
    return suite, _require_supported(rows)


def _require_supported(rows: list[Row]) -> list[Row]:
    """Return `rows`; raise LenetError with the first reason unless one is supported."""
    first = rows[0]
    if isinstance(first, Unsupported) and not any(isinstance(row, Shape) for row in rows):
        more = f"; {len(rows) - 1} more unsupported" if len(rows) > 1 else ""
        why = re.sub("^(?!expected)", "expected a supported convolution, found ", first.why)
        raise LenetError(f"conv {first.label}: {why}{more}")
    return rows


def command_of(request: ConvRequest, row: Row, only: str | None = None) -> str | None:
    """Return the command line of a row, or None if it is not supported."""
    if not isinstance(row, Shape):
        return None
    words = ["lenetgpu", "conv", *shape_text(row.problem).split(), "--batch", str(row.batch)]
    tunes = request.tune and only is None
    usual = ConvRequest(watch=request.watch) if tunes else ConvRequest()  # --tune sets watch
    for name in _METHOD:
        value = getattr(request, name)
        if value != getattr(usual, name):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [f"{value}"])]
    for path in request.plugins:
        words += ["--with", str(path)]
    if tunes:
        words.append("--tune")
    elif only := only or request.only:
        words += ["--only", only]
    return shlex.join(words)


def add_commands(
    case: dict[str, Any], request: ConvRequest, shape: Shape, peer: str | None
) -> None:
    """Add to a case and to each of its candidates the command that repeats it alone."""
    # It names the baseline, unless that is PyTorch or the candidate itself. A tiling that
    # `--tune` tries has the case's command.
    case["command"] = command_of(request, shape)
    with_baseline = replace(request, baseline=request.baseline or case["baseline"])
    for entry in case["candidates"]:
        name = entry["name"]
        if TILED in name:
            entry["command"] = case["command"]
            continue
        alone = case["baseline"] in (peer, name) or name == peer
        requested = request if alone else with_baseline
        entry["command"] = command_of(requested, shape, None if name == peer else name)


def run_list(request: ConvRequest) -> dict[str, Any]:
    """Return a row per suite or convolution; nothing is run. Raises LenetError for bad input."""
    requested = (request.shape, request.suite, request.lines, request.model)
    if all(way is None for way in requested) and request.batch is None:
        suites = [
            {
                **{name: getattr(suite, name) for name in ("name", "title")},
                "shapes": len(suite.rows),
                "supported": len(suite.shapes),
                "convolutions": sum(row.count for row in suite.rows),
                "images": sorted({shape.batch for shape in suite.shapes}),
                "source": suite.source or None,
            }
            for suite in SUITES.values()
        ]
        return {"schema": SCHEMA, "command": "suites", "suites": suites}
    suite, rows = rows_asked(request)
    network = network_json(rows, [command_of(request, row) for row in rows], [])
    return {"schema": SCHEMA, "command": "shapes", **suite_json(suite), "network": network}
