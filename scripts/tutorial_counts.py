"""What docs/tutorial.md counts of its steps from the shape, and quotes of their files."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from lenetgpu.stages.sectors import WARP, counted

FLOAT = 4
TILE = 4
"""Columns, and channels, that step 4's loops take at once."""


def _sectors(p: Any, maps_first: bool) -> tuple[int, int]:
    """32-byte sectors that a warp's load of its inputs, and of its filters, lies in."""
    i = np.arange(WARP)
    if maps_first:
        m, column, row = i % p.M, i // p.M % p.OW, i // (p.M * p.OW)
    else:
        column, row, m = i % p.OW, i // p.OW % p.OH, i // (p.OW * p.OH)
    return counted((row * p.W + column) * p.C).sectors, counted(m).sectors


def shape(p: Any) -> str:
    """Operations and bytes of one image."""
    products = p.flop(1) // 2
    filters = FLOAT * p.depth * p.M
    held = FLOAT * p.H * p.W * p.C, FLOAT * p.OH * p.OW * p.M
    return "\n".join(
        [
            "| of one image | |",
            "|---|---:|",
            f"| input {p.H}x{p.W}x{p.C} | {held[0]:,} bytes |",
            f"| filters {p.R}x{p.S}x{p.C}x{p.M}, the same for all | {filters:,} bytes |",
            f"| output {p.OH}x{p.OW}x{p.M} | {held[1]:,} bytes |",
            f"| products an output | {p.depth:,} |",
            f"| multiply-adds | {products:,} |",
            f"| multiply-adds a byte, if each byte were moved once | {products / sum(held):,.0f} |",
            f"| times that a filter value is used | {p.OH * p.OW:,} |",
            f"| times that an input value is used, at most | {p.R * p.S * p.M:,} |",
        ]
    )


def loads(p: Any) -> str:
    """A row a step: what each multiply-add costs in loads and stores.

    Those of steps 1 to 3 are read off their loops; the others follow from the tile and the shape.
    """
    far = FLOAT * p.depth * p.M
    wide = _sectors(p, maps_first=False)
    near = _sectors(p, maps_first=True)
    block = Fraction(2 * TILE + TILE, TILE * TILE)
    strip = Fraction(p.W + p.S, p.S * p.OW)
    rows = [
        (1, 4, 2, f"{wide[0]} + {wide[1]}", p.OH * p.OW * far),
        (2, 3, 2, f"{near[0]} + {near[1]}", p.OH * p.OW * far),
        (3, 3, 2, f"{near[0]}, filters near", p.OH * far),
        (4, block, strip, "all near", far),
        (5, block, strip, "all near", far),
    ]
    lines = [
        "| step | CPU: loads and stores a multiply-add | GPU: loads a multiply-add "
        "| GPU: sectors of 32 bytes a warp's load from global memory (input + filters) "
        "| GPU: bytes of filters fetched for an image |",
        "|---:|---:|---:|---:|---:|",
    ]
    for step, cpu, gpu, sectors, bytes_ in rows:
        lines.append(f"| {step} | {float(cpu):.3g} | {float(gpu):.3g} | {sectors} | {bytes_:,} |")
    return "\n".join(lines)


def _between(text: str, first: str, last: str) -> str:
    found = re.search(rf"^{first}.*?(?=^{last}|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, first
    return found[0].rstrip()


def code(folder: Path, name: str) -> str:
    """The lines of a step's two files that are its idea."""
    python = (folder / f"{name}.py").read_text()
    cuda = (folder / f"{name}.cu").read_text()
    own = re.search(r"^@lazy_njit\n.*?(?=\n\n\n)", python, re.MULTILINE | re.DOTALL)
    if "parallel_ranges(" in python:
        own = re.search(r"^def every_core.*?(?=\n\n\n)", python, re.MULTILINE | re.DOTALL)
    assert own is not None, name
    kernel = _between(cuda, 'extern "C"', "$never")
    where = f"[{name}.py](tutorial/{name}.py) and [{name}.cu](tutorial/{name}.cu), their cores:"
    return f"{where}\n\n```python\n{own[0]}\n```\n\n```cuda\n{kernel}\n```"


def parts(folder: Path, problem: Any) -> dict[str, str]:
    """Name to content of the page's parts that need no run."""
    makers: dict[str, Callable[[Any], str]] = {"shape": shape, "loads": loads}
    made = {name: make(problem) for name, make in makers.items()}
    return made | {f"step{n}-code": code(folder, f"step{n}") for n in range(1, 6)}
