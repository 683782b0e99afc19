"""Lines of benchdnn, oneDNN's benchmark: `mb64_ic64ih56oc64oh56kh3ph1n"resnet:3x3"`.

After its documentation (tests/benchdnn/doc: knobs_desc.md, driver_conv.md): `_` parts entries where
people like; g is 1, mb 2, strides 1 and dilations 0 where they are not said; what is said of rows
holds for columns; of outputs and padding one follows from the other; there is a bias unless the
direction says that there is none.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.files.convs.described import Described, Given
from lenetgpu.problems import outputs

_ENTRIES = ("g", "mb", "ic", "oc", *(what + side for side in "dhw" for what in "ioksdp"))
_PLAIN = {"g": 1, "mb": 2}
_OF_A_SIDE = {"s": 1, "d": 0}
_ENTRY = re.compile(r"_*([a-z]{1,3})(-?[0-9]{1,9})(?![0-9])")
_DTYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "bf16bf16bf16": "bf16"}
_RELU = re.compile(r"""(['"]?)relu(:0(\.0*)?){0,2}\1""")
"""A post-operation of its own, of no slope below zero."""
_NAME = re.compile(r'_*n"?([^"]*)"?$')
_IGNORED = re.compile(r"--conv|--reset|-v[0-9]|--(mode|alg|stag|wtag|dtag|engine|verbose)=.*")
"""Knobs that do not change what is computed, but where its operands lie and how it is run."""
BEGINS = re.compile(r"(\S*benchdnn(\s|$))|--|_*(g|mb|ic|ih|iw|id|oc)-?[0-9]")
"""How a line of it begins."""


def read(line: str, epilogue: bool = False) -> Given:
    """The convolution of a line, perhaps of a whole command; LenetError where it is none.

    ReLU behind it is taken where the line says it, a bias where `epilogue` says so too.
    """
    where = f"benchdnn's {line!r}"
    others: list[str] = []
    images, found = 0, []
    ends: dict[str, Any] = {"bias": epilogue}
    for word in line.split():
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            found.append(word)
        elif name == "--mb":
            images = _number(value, where)
        elif name == "--deconv":
            others.append("transposed")
        elif name == "--dir":
            others += [] if value.startswith("FWD_") else [f"direction {value}"]
            ends["bias"] = epilogue and value == "FWD_B"
        elif name in ("--dt", "--cfg"):
            (kind, *more) = {_DTYPES.get(one) for one in value.split(":")}
            others += [f"{value} operands"] if more or kind is None else []
            ends["dtype"] = kind or "fp32"
        elif name == "--attr-post-ops":
            ends["relu"] = _RELU.fullmatch(value) is not None
            others += [] if ends["relu"] or not value else [f"post-operations {value}"]
        elif not _IGNORED.fullmatch(word):
            raise LenetError(f"{where}: expected knobs of which convolution it is, found {word}")
    if found and found[0].endswith("benchdnn"):
        del found[0]
    if len(found) != 1:
        raise LenetError(f"{where}: expected one descriptor, as ic3ih8oc4kh3, found {len(found)}")
    entries, name = _entries(found[0], where)
    if images:
        entries["mb"] = images
    if any(entry[1] == "d" for entry in filter(_sided, entries)):
        others.append("3 spatial dimensions")
    if not {"transposed", "3 spatial dimensions"}.isdisjoint(others):
        return Given(None, name, tuple(others))
    return Given(replace(_described(entries, where), **ends), name, tuple(others))


def _sided(entry: str) -> bool:
    return len(entry) == 2 and entry not in ("mb", "ic", "oc")


def _number(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise LenetError(f"{where}: expected a whole number, found {text!r}")
    return int(text)


def _entries(descriptor: str, where: str) -> tuple[dict[str, int], str]:
    entries: dict[str, int] = {}
    at, name = 0, ""
    while at < len(descriptor):
        match = _ENTRY.match(descriptor, at)
        if match is None:
            named = _NAME.match(descriptor, at)
            if named is None and descriptor[at:].strip("_"):
                raise LenetError(
                    f"{where}: expected an entry and its whole number, found {descriptor[at:]!r}"
                )
            name = named[1] if named else ""
            break
        key, value = match[1], int(match[2])
        if key not in _ENTRIES or key in entries:
            again = " twice" if key in entries else ""
            raise LenetError(
                f"{where}: expected each of {', '.join(_ENTRIES)} once, found {key}{again}"
            )
        entries[key] = value
        at = match.end()
    return entries, name


def _described(entries: dict[str, int], where: str) -> Described:
    """Of two sides; a line that says columns only has one row."""
    rows = any(entry[1] == "h" for entry in filter(_sided, entries))
    for key in ("ic", "oc", *(("ih", "kh") if rows else ("iw", "kw"))):
        if key not in entries:
            raise LenetError(f"{where}: expected {key}, found none")
    entries = _PLAIN | entries
    if not rows:
        entries |= {"ih": 1, "kh": 1, "ph": 0, "oh": 1}
    sides = []
    for side, before in (("h", ""), ("w", "h" if rows else "")):
        known = {w: entries[w + side] for w in "ioksdp" if w + side in entries}
        if before and not {"i", "k", "s", "d", "p"} & known.keys():
            known = {w: entries[w + before] for w in "ioksdp" if w + before in entries} | known
        elif before:
            known = {w: entries[w + before] for w in "iksdp" if w + before in entries} | known
        sides.append(_side(_OF_A_SIDE | known))
    (H, R, oh, sh, ph, dh), (W, S, ow, sw, pw, dw) = sides
    asked = Described(
        entries["mb"], H, W, entries["ic"], entries["oc"], R, S, (oh, ow), (sh, sw), (ph, pw),
        (dh + 1, dw + 1), entries["g"],
    )  # fmt: skip
    asked.require(where)
    return asked


def _side(known: dict[str, int]) -> tuple[int, int, int, int, int, int]:
    """Input, filter, output, stride, padding and dilation of rows, or of columns."""
    size, taps, stride, far = (known[what] for what in "iksd")
    span = (taps - 1) * (far + 1) + 1
    if "p" not in known and "o" in known:
        known = known | {"p": max(0, (known["o"] - 1) * stride - size + span) // 2}
    pad = known.get("p", 0)
    if "o" not in known:
        known = known | {"o": outputs(size, span, max(stride, 1), 2 * pad)}
    return size, taps, known["o"], stride, pad, far
