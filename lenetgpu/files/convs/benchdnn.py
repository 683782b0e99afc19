"""Lines of benchdnn, oneDNN's benchmark: `mb64_ic64ih56oc64oh56kh3ph1n"resnet:3x3"`.

Follows its documentation (tests/benchdnn/doc: knobs_desc.md, driver_conv.md). A `_` may separate
entries. The defaults are g 1, mb 2, strides 1 and dilations 0. Columns without any entry of their
own are those of the rows; with one, nothing is copied. The output size follows from the padding,
or the padding from the output size. There is a bias unless the direction excludes it.
"""

import re
from dataclasses import replace
from typing import Any

from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.convs.described import Given, convolution
from lenetgpu.problems import Conv

_ENTRIES = ("g", "mb", "ic", "oc", *(what + side for side in "dhw" for what in "ioksdp"))
_ENTRY = re.compile(r"_*(?!n)([a-z]{1,3})([0-9]{1,9})(?![0-9])")  # n begins the name
_DTYPES = {
    "f32": "fp32", "f32_wino": "fp32", "f16": "fp16", "bf16": "bf16", "bf16bf16bf16": "bf16",
}  # fmt: skip
# A ReLU as the only post-operation, with slope zero below zero.
_RELU = re.compile(r"""(['"]?)relu(:0(\.0*)?){0,2}\1""")
_NAME = re.compile(r'_*(n"?(.*?)"?)?$')
# Knobs that change memory layouts, execution or reports, not the result.
_IGNORED = re.compile(
    r"--(de)?conv|-v[0-9]|--attr-(fpmath|acc-mode)=strict|--(mode(-modifier)?|alg|[swd]tag|strides"
    r"|engine|verbose|(skip-|global-)?impl|allow-enum-tags-only|perf-template|mem-check|start"
    r"|memory-kind|cpu-isa-hints|canonical|(repeats|fix-times|max-ms)-per-prb|fast-ref(-[cg]pu)?"
    r"|ctx-(init|exe)|cold-cache|execution-mode|num-streams|attr-(scratchpad(-mode)?|same-pd-check"
    r"|deterministic))=.*"
)
# Knobs that hold until they change or --reset; an empty value restores the default.
_KEPT = re.compile(r"--(mb|dir|dt|cfg|attr-[a-z-]+|bia[-_]dt|match)")
_PROGRAM = re.compile(r"\S*benchdnn(\.exe)?")
# Start of a benchdnn line.
BEGINS = re.compile(rf"{_PROGRAM.pattern}(\s|$)|--?[a-z]|_*(g|mb|ic|oc|[iokspd][dhw])-?[0-9]")


def read(line: str, kept: dict[str, str] | None = None) -> Given | None:
    """Return the convolution of a descriptor or command line, or None for knobs alone.

    `kept` has the knobs of a file's earlier lines and gets this line's, unless that names benchdnn
    or its driver. LenetError if the line is invalid, or has knobs alone and `kept` is None.
    """
    where, words = f"benchdnn's {line!r}", line.split()
    own = not {"--conv", "--deconv"}.isdisjoint(words)
    if words and _PROGRAM.fullmatch(words[0]):
        own = bool(words.pop(0))
    knobs = {} if own or kept is None else dict(kept)
    for word in (word for word in words if word.startswith("-")):
        name, _, value = word.partition("=")
        if word == "--reset":
            knobs.clear()
        elif name == "--mb" and not re.fullmatch(r"[0-9]{1,9}", value):
            raise unexpected(where, "a whole number", repr(value))
        elif not _IGNORED.fullmatch(word):
            if not _KEPT.fullmatch(name):
                raise unexpected(where, "a knob of its convolutions", word)
            knobs["--dt" if name == "--cfg" else name] = value
    descriptors = [word for word in words if not word.startswith("-")]
    if kept is not None and not (own and descriptors):
        kept.clear()
        kept.update(knobs)
        if not descriptors:
            return None
    if len(descriptors) != 1:
        raise unexpected(where, "one descriptor like ic3ih8oc4kh3", f"{len(descriptors)}")
    return _given(descriptors[0], knobs, ["transposed"] * ("--deconv" in words), where)


def _given(descriptor: str, knobs: dict[str, str], others: list[str], where: str) -> Given:
    epilogue = dict[str, Any](bias=True)
    for name, value in ((name, value) for name, value in knobs.items() if value):
        if name == "--dir":
            known = value.upper() in ("FWD_B", "FWD_D", "FWD_I")
            others += [] if known else [f"direction {value}"]
            epilogue["bias"] = value.upper() == "FWD_B"
        elif name == "--dt":
            (kind, *more) = {_DTYPES.get(dtype) for dtype in value.split(":")}
            others += [f"{value} operands"] if more or kind is None else []
            epilogue["dtype"] = kind or "fp32"
        elif name == "--attr-post-ops":
            epilogue["relu"] = _RELU.fullmatch(value) is not None
            others += [] if epilogue["relu"] else [f"post-operations {value}"]
        elif name != "--mb":
            others.append(f"{name}={value}")
    entries, label = _entries(descriptor, where)
    images = entries["mb"] = int(knobs.get("--mb", 0)) or entries.get("mb", 2)
    if _side(entries, "d", where) is not None:
        others.append("3 spatial dimensions")
    if not {"transposed", "3 spatial dimensions"}.isdisjoint(others):
        return Given(None, name=label, others=tuple(others))
    problem = replace(_convolution(entries, where), **epilogue)
    return Given(problem, images, label, tuple(others))


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
        raise unexpected(where, "an entry and its whole number", repr(descriptor[at:]))
    return entries, named[2] or ""


def _convolution(entries: dict[str, int], where: str) -> Conv:
    """Return the two-dimensional convolution; a descriptor with columns only has one row."""
    rows, columns = (_side(entries, side, where) for side in "hw")
    columns = columns or rows
    missing = [key for key in ("ic", "oc") if key not in entries]
    if columns is None or missing:
        raise unexpected(where, [*missing, "ih"][0], "none")
    (H, R, oh, sh, ph, dh), (W, S, ow, sw, pw, dw) = rows or (1, 1, 1, 1, 0, 1), columns
    return convolution(
        where, (entries["mb"], H, W, entries["ic"], entries["oc"]), (R, S), (oh, ow),
        (sh, sw), (ph, pw), (dh, dw), entries.get("g", 1),
    )  # fmt: skip


def _side(entries: dict[str, int], side: str, where: str) -> tuple[int, ...] | None:
    """Return input, filter, output, stride, padding and dilation of a dimension, if given."""
    size, k, out, stride, far = (entries.get(e + side, int(e == "s")) for e in "ikosd")
    pad = entries.get(f"p{side}", -1)
    if not (size or k or out or far) and stride == 1 and pad < 1:  # defaults count as not given
        return None
    for key in (f"i{side}", f"k{side}", f"s{side}"):
        if entries.get(key, int(key[0] == "s")) < 1:
            raise LenetError(f"{where}: expected {key}, found {entries.get(key, 'none')}")
    span = (k - 1) * (far + 1) + 1
    if not out:
        pad = max(pad, 0)
        out = int((size - span + 2 * pad) / stride) + 1  # rounds towards zero, like C
    elif pad < 0:
        pad = max(0, (out - 1) * stride - size + span) // 2
    return size, k, out, stride, pad, far + 1
