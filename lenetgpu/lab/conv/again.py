"""The command that repeats one row alone."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from typing import Any

from lenetgpu.dispatch.algorithms import TILED
from lenetgpu.lab.conv.request import ConvRequest
from lenetgpu.lab.show.conv_document import shape_text
from lenetgpu.papers.shapes import Row, Shape

_KEPT = ("device", "seconds", "rounds", "warmup", "watch", "cold_l2", "bitwise", "reference")
"""What of a request says how a shape is measured, and not where its results go."""


def command_of(request: ConvRequest, row: Row, only: str | None = None) -> str | None:
    """The command line of a row; None where it is not taken."""
    if not isinstance(row, Shape):
        return None
    words = [*shape_text(row.problem).split(), "--batch", str(row.batch)]
    plain = {field.name: field.default for field in fields(ConvRequest)}
    tunes = request.tune and only is None
    for name in _KEPT:
        value = plain[name] if tunes and name == "watch" else getattr(request, name)
        if value != plain[name]:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [f"{value}"])]
    for path in request.outside:
        words += ["--with", str(path)]
    if tunes:
        return shlex.join(["lenetgpu", "conv", *words, "--tune"])
    only = only or request.only
    return shlex.join(["lenetgpu", "conv", *words, *(["--only", only] if only else [])])


def add_commands(
    case: dict[str, Any], request: ConvRequest, shape: Shape, peer: str | None
) -> None:
    """Give a case, and each of its candidates, the command that repeats it alone.

    That of a candidate names what its ratio is over, where that is not PyTorch's; that of a tiling
    that `--tune` tries is the case's.
    """
    case["command"] = command_of(request, shape)
    beside = replace(request, reference=request.reference or case["reference"])
    for entry in case["candidates"]:
        only = None if entry["name"] == peer else entry["name"]
        own = only is None or case["reference"] in (peer, only)
        entry["command"] = command_of(request if own else beside, shape, only)
        if TILED in entry["name"]:
            entry["command"] = case["command"]
