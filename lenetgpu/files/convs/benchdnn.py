"""Lines of benchdnn, oneDNN's benchmark: `mb64_ic64ih56oc64oh56kh3ph1n"resnet:3x3"`.

Follows its documentation (tests/benchdnn/doc: knobs_desc.md, driver_conv.md). A `_` may separate
entries. The defaults are g 1, mb 2, strides 1 and dilations 0. A value for rows also applies to
columns. The output size follows from the padding, or the padding from the output size. There is a
bias unless the direction excludes it.
"""

import re
from dataclasses import replace
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.files.convs.described import Given, convolution
from lenetgpu.problems import Conv, outputs

_ENTRIES = ("g", "mb", "ic", "oc", *(what + side for side in "dhw" for what in "ioksdp"))
_ENTRY = re.compile(r"_*([a-z]{1,3})(-?[0-9]{1,9})(?![0-9])")
_DTYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "bf16bf16bf16": "bf16"}
# A ReLU as the only post-operation, with slope zero below zero.
_RELU = re.compile(r"""(['"]?)relu(:0(\.0*)?){0,2}\1""")
_NAME = re.compile(r'_*(n"?([^"]*)"?)?$')
# Knobs that change memory layouts or execution, not the result.
_IGNORED = re.compile(r"--conv|--reset|-v[0-9]|--(mode|alg|stag|wtag|dtag|engine|verbose)=.*")
# Start of a benchdnn line.
BEGINS = re.compile(r"(\S*benchdnn(\s|$))|--|_*(g|mb|ic|ih|iw|id|oc)-?[0-9]")


def read(line: str) -> Given:
    """Return the convolution of a descriptor or command line; raise LenetError if it is invalid."""
    where = f"benchdnn's {line!r}"
    images, words, others = 0, list[str](), list[str]()
    epilogue: dict[str, Any] = {"bias": True}
    for word in line.split():
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            words.append(word)
        elif name == "--mb":
            if not re.fullmatch(r"[0-9]{1,9}", value):
                raise LenetError(f"{where}: expected a whole number, found {value!r}")
            images = int(value)
        elif name == "--deconv":
            others.append("transposed")
        elif name == "--dir":
            others += [] if value.startswith("FWD_") else [f"direction {value}"]
            epilogue["bias"] = value == "FWD_B"
        elif name in ("--dt", "--cfg"):
            (kind, *more) = {_DTYPES.get(dtype) for dtype in value.split(":")}
            others += [f"{value} operands"] if more or kind is None else []
            epilogue["dtype"] = kind or "fp32"
        elif name == "--attr-post-ops":
            epilogue["relu"] = _RELU.fullmatch(value) is not None
            others += [] if epilogue["relu"] or not value else [f"post-operations {value}"]
        elif not _IGNORED.fullmatch(word):
            raise LenetError(f"{where}: expected knobs of which convolution it is, found {word}")
    if words and words[0].endswith("benchdnn"):
        del words[0]
    if len(words) != 1:
        raise LenetError(f"{where}: expected one descriptor like ic3ih8oc4kh3, found {len(words)}")
    entries, name = _entries(words[0], where)
    if images:
        entries["mb"] = images
    if any(key[1:] == "d" for key in entries):
        others.append("3 spatial dimensions")
    if not {"transposed", "3 spatial dimensions"}.isdisjoint(others):
        return Given(None, name=name, others=tuple(others))
    problem = replace(_convolution(entries, where), **epilogue)
    return Given(problem, entries.get("mb", 2), name, tuple(others))


def _entries(descriptor: str, where: str) -> tuple[dict[str, int], str]:
    entries, at = dict[str, int](), 0
    while match := _ENTRY.match(descriptor, at):
        key = match[1]
        if key not in _ENTRIES or key in entries:
            found = f"{key} twice" if key in entries else key
            raise LenetError(f"{where}: expected each of {', '.join(_ENTRIES)} once, found {found}")
        entries[key] = int(match[2])
        at = match.end()
    named = _NAME.match(descriptor, at)
    if named is None:
        found = f"found {descriptor[at:]!r}"
        raise LenetError(f"{where}: expected an entry and its whole number, {found}")
    return entries, named[2] or ""


def _convolution(entries: dict[str, int], where: str) -> Conv:
    """Return the two-dimensional convolution; a descriptor with columns only has one row."""
    rows = any(key[1:] == "h" for key in entries)
    for key in ("ic", "oc", *(("ih", "kh") if rows else ("iw", "kw"))):
        if key not in entries:
            raise LenetError(f"{where}: expected {key}, found none")
    of_rows, of_columns = (
        {size: entries[size + side] for size in "ioksdp" if size + side in entries} for side in "hw"
    )
    if not rows:
        of_rows = {"i": 1, "k": 1, "p": 0, "o": 1}
    else:
        alike = of_rows.keys() - ("o" if of_columns.keys() - {"o"} else "")
        of_columns = {size: of_rows[size] for size in alike} | of_columns
    (H, R, oh, sh, ph, dh), (W, S, ow, sw, pw, dw) = _side(of_rows), _side(of_columns)
    return convolution(
        where, (entries.get("mb", 2), H, W, entries["ic"], entries["oc"]), (R, S), (oh, ow),
        (sh, sw), (ph, pw), (dh + 1, dw + 1), entries.get("g", 1),
    )  # fmt: skip


def _side(known: dict[str, int]) -> tuple[int, int, int, int, int, int]:
    """Return input, filter, output, stride, padding and dilation of one dimension."""
    size, side, stride, far = known["i"], known["k"], known.get("s", 1), known.get("d", 0)
    span, out = (side - 1) * (far + 1) + 1, known.get("o")
    pad = known.get("p", 0 if out is None else max(0, (out - 1) * stride - size + span) // 2)
    if out is None:
        out = outputs(size, span, max(stride, 1), 2 * pad)
    return size, side, out, stride, pad, far
