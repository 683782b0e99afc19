"""Listings of variants and files: `variants`, `data info`, `weights info`, `verify`."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.arrays import np
from lenetgpu.errors import LenetError, choose
from lenetgpu.files import assets, sums
from lenetgpu.files.models import forms
from lenetgpu.files.regular import MAGIC, start_of
from lenetgpu.files.source import open_source
from lenetgpu.files.weights import about, load_weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.network import IMAGE_SHAPE, SPANS, STAGES
from lenetgpu.plan import choose_device, requested_as
from lenetgpu.stages import Variant, variants
from lenetgpu.stages.registry import KINDS, SPAN_KINDS, Needs
from lenetgpu.store import write_atomically

if TYPE_CHECKING:
    from lenetgpu.lab.console import Console
    from lenetgpu.stages.matrix import Cell

MARK = "*"
_LEAST_DESCRIPTION = 40  # width of a description next to its variant's name
_AT_ONCE = 4096
_NO_CHECKSUM = b"\0\0\x08", b"\x93NUMPY"  # first bytes of IDX and .npy files
Line = list[tuple[str, str]]  # texts, each with its style
_ENDINGS = {".py": "launches the kernel, and computes the same on a CPU", ".cu": "the kernel"}
# Options that keep a comparison short on a CPU, where loops are slow
_SHORT = " --batch 20 --seconds 5"


def print_lines(console: Console, lines: Iterable[Line]) -> None:
    """Print lines made of styled texts."""
    from rich.text import Text

    for line in lines:
        console.print(Text.assemble(*line))


def variant_rows(stage: str | None = None) -> list[dict[str, Any]]:
    """Return an object per variant, family by family; raise LenetError for an unknown `stage`."""
    # `here` is true if the variant runs on this machine; `lacks` names the missing requirement.
    gpu, _ = choose_device("auto")
    by_name = kinds()
    if stage is not None and stage not in by_name:
        raise LenetError(f"stage {stage!r} does not exist; {choose(stage, by_name)}")
    wanted = [*KINDS, *SPAN_KINDS]
    if stage is not None:
        wanted = [by_name[stage], *(span.kind for span in SPANS if stage in span.stages)]
    listed = [v for kind in dict.fromkeys(wanted) for v in variants(kind)]
    groups = list(dict.fromkeys((v.kind, v.family) for v in listed))
    return [_row(v, gpu) for v in sorted(listed, key=lambda v: groups.index((v.kind, v.family)))]


def table_rows(stage: str | None = None) -> tuple[list[dict[str, Any]], str]:
    """Return the same objects, and a text on the devices here and the unmet needs."""
    rows = variant_rows(stage)
    missing = sorted({row["lacks"] for row in rows if row["lacks"]})
    others = f"; the others require {' or '.join(missing)}" if missing else ""
    return rows, machine() + others


def machine() -> str:
    """Return the devices of this machine that variants run on."""
    gpu, why = choose_device("auto")
    return f"cpu ({why})" if gpu is None else f"cpu and {gpu.name}, cuda {gpu.version}"


def kinds() -> dict[str, str]:
    """Map each stage, kind and span with variants to its kind."""
    by_name = {s.name: s.kind for s in STAGES} | {kind: kind for kind in (*KINDS, *SPAN_KINDS)}
    return by_name | {span.name: span.kind for span in SPANS}


def _lacks(needs: Needs, gpu: Gpu | None) -> str | None:
    if needs.device == "cpu" or (gpu is not None and needs.met_by(gpu)):
        return None
    if gpu is None:
        return "a GPU"
    later = "" if needs.exact else " or later"
    return f"a GPU of compute capability {needs.compute_capability / 10:.1f}{later}"


def _row(v: Variant, gpu: Gpu | None) -> dict[str, Any]:
    lacks = _lacks(v.needs, gpu)
    return {
        "kind": v.kind,
        "stages": [s.name for s in STAGES if s.kind == v.kind]
        + [span.name for span in SPANS if span.kind == v.kind],
        "variant": v.full_name,
        "also": list(v.also),
        "needs": str(v.needs),
        "precision": requested_as(v.precision),
        **{name: list(getattr(v, name)) for name in ("reads", "writes")},
        "paper": v.paper,
        "description": v.summary,
        "here": lacks is None,
        "lacks": lacks,
    }


def variant_lines(rows: list[dict[str, Any]], machine: str, width: int) -> list[Line]:
    """Return lines of at most `width` characters; marked variants run on `machine`."""
    keys = ("variant", "needs", "precision")
    widths = {key: max(len(row[key]) for row in rows) for key in keys}
    lines: list[Line] = []
    kind = family = None
    for row in rows:
        if family is not None and family != (row["kind"], row["variant"].split(".")[0]):
            lines.append([("", "")])
        family = row["kind"], row["variant"].split(".")[0]
        if kind != row["kind"]:
            kind, stages = row["kind"], ", ".join(row["stages"])
            lines.append([(stages if stages == kind else f"{kind}: {stages}", "bold")])
        text = row["description"] + (f" Also {', '.join(row['also'])}." if row["also"] else "")
        cells = [MARK if row["here"] else " ", *(f"{row[key]:{widths[key]}} " for key in keys)]
        first = " ".join(cells) + " "
        indent, style = " " * len(first), ""
        if width - len(first) >= _LEAST_DESCRIPTION:
            text += f" ({row['paper']})" if row["paper"] else ""
        else:
            lines.append([(first.rstrip(), "")])
            first, indent, style = "    ", "    ", "dim"
        wrapped = textwrap.wrap(
            text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
        )
        lines += [[(line, style)] for line in wrapped]
    legend = textwrap.wrap(f"{MARK} runs on this machine: {machine}", width, subsequent_indent="  ")
    return [*lines, [("", "")], *([(line, "")] for line in legend)]


def matrix_lines(cells: list[Cell], width: int) -> list[Line]:
    """Return a table per device, or a list where `width` is too small for it, then the notes."""
    lines: list[Line] = []
    for _, on_device in groupby(cells, lambda cell: cell.device):
        rows = [list(row) for _, row in groupby(on_device, lambda cell: cell.stage)]
        table = _table(rows)
        if max(sum(len(text) for text, _ in line) for line in table) > width:
            table = []
            for row in rows:
                table.append([(f"{row[0].device} {row[0].stage}", "bold")])
                table += [[(f"  {cell.family:9}", ""), _shown(cell)] for cell in row]
        lines += [*table, []]
    for note in _notes(cells):
        lines += [[(line, "")] for line in textwrap.wrap(note, width, subsequent_indent="  ")]
    return lines


def _table(rows: list[list[Cell]]) -> list[Line]:
    head = [(rows[0][0].device, "bold"), *((cell.family, "bold") for cell in rows[0])]
    lines = [head, *([(row[0].stage, ""), *map(_shown, row)] for row in rows)]
    for at in range(len(head) - 1):
        size = max(len(line[at][0]) for line in lines) + 2
        for line in lines:
            line[at] = f"{line[at][0]:{size}}", line[at][1]
    return lines


def _shown(cell: Cell) -> tuple[str, str]:
    if cell.name is None:
        return "refused", "red"
    return cell.name.partition(".")[2] + ("*" if cell.copies else ""), "green"


def _notes(cells: list[Cell]) -> list[str]:
    notes = ["* the CPU's, with copies"] if any(cell.copies for cell in cells) else []
    refused: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.refused is not None:
            key = f"{cell.stage} by {cell.family}", cell.refused
            refused.setdefault(key, []).append(cell.device)
    return notes + [f"{k} on {' and '.join(on)}: {why}" for (k, why), on in refused.items()]


def data_rows(path: Path) -> list[tuple[str, str]]:
    """Return (property, value) rows about an image file."""
    with open_source(path) as source:
        dataset = source.whole()
    images = dataset.images
    rows = [
        ("file", dataset.source),
        ("images", f"{len(dataset):,} of {images.shape[1]}x{images.shape[2]}, {images.dtype}"),
        ("values", f"{images.min():g} to {images.max():g}, mean {images.mean():.4g}"),
    ]
    counts = Counter([] if dataset.labels is None else dataset.labels.tolist())
    labels = ", ".join(f"{digit}: {count:,}" for digit, count in sorted(counts.items()))
    return [*rows, ("labels", labels or "none")]


def weight_rows(path: Path) -> list[tuple[str, str]]:
    """Return (property, value) rows about a weight file, including its attributes."""
    weights, file = load_weights(path), about(path)
    rows = [("file", weights.source), ("form", file.form)]
    for name, tensor in weights.tensors.items():
        shape, rms = "x".join(map(str, tensor.shape)), (tensor.astype("f8") ** 2).mean() ** 0.5
        values = f"{tensor.min():.4f} to {tensor.max():.4f}, rms {rms:.4f}"
        rows.append((f"/{name}", f"{shape}, {values}"))
    rows += [("checksums", file.sums.summary), *file.facts.items()]
    if file.unread:
        names = ", ".join(file.unread)
        rows.append(("not read", f"{names} (text of variable length, or no one value)"))
    return rows


def verified(path: Path) -> str:
    """Read all of a file; return its checksums' result, or raise LenetError if it is damaged."""
    start = start_of(path, "a file of images, weights or labels", forms.START)
    plain = start.startswith(_NO_CHECKSUM)
    if forms.form_of(start) is not None:
        return about(path).sums.summary
    if start.startswith(MAGIC):
        from lenetgpu.files.checksums import verify

        return verify(path).summary
    with open_source(path) as source:
        part = np.empty((_AT_ONCE, *IMAGE_SHAPE), source.dtype)
        for lo in range(0, len(source), _AT_ONCE):
            source.read(lo, part[: len(source) - lo])
    return sums.NONE if plain else "gzip's checksum matches"


def shipped() -> list[tuple[str, str]]:
    """Return (name, state) rows for the weights and the digits included in the package."""
    rows = []
    for name, find in (("weights", assets.default_weights), ("digits", assets.default_digits)):
        try:
            rows.append((name, f"{find()}, {verified(find())}"))
        except LenetError as error:
            rows.append((name, str(error)))
    return rows


def start(kind: str, folder: Path) -> list[tuple[str, str]]:
    """Write KIND.py and KIND.cu into `folder`; return (file, purpose) rows and the next command.

    Raises LenetError, and writes nothing, for an unknown `kind`, or if one of the files exists.
    """
    if kind not in KINDS:
        raise LenetError(f"--new: expected one of {', '.join(KINDS)}, found {kind!r}")
    if folder.exists() and not folder.is_dir():
        raise LenetError(f"--new: expected a folder or a new name, found the file {folder}")
    files = {folder / f"{kind}{ending}": what for ending, what in _ENDINGS.items()}
    for file in files:
        if os.path.lexists(file):
            raise LenetError(f"--new: expected no {file}, found one, which stays as it is")
    texts = resources.files("lenetgpu.lab") / "start"
    try:
        for file in files:
            write_atomically(file, (texts / file.name).read_bytes())
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        raise
    stage = "conv2" if kind == "conv" else next(s.name for s in STAGES if s.kind == kind)
    text = f"./{folder}" if str(folder).startswith("-") else str(folder)  # not an option
    command = f"lenetgpu compare {stage} --with {shlex.quote(text.rstrip(os.sep) + os.sep)}"
    if choose_device("auto")[0] is None:
        command += _SHORT
    return [*((str(file), what) for file, what in files.items()), ("next", command)]
