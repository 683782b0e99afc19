"""Whether a file is as it was written, by the checksums that it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files import assets, checksums
from lenetgpu.files.inflate import GZIP_MAGIC
from lenetgpu.files.models import forms
from lenetgpu.files.regular import open_regular
from lenetgpu.files.source import open_source
from lenetgpu.files.weights import about
from lenetgpu.network import IMAGE_SHAPE

_AT_ONCE = 4096
_WITHOUT = b"\0\0\x08", b"\x93NUMPY"
"""How IDX and .npy files begin, which have no place for a checksum."""


def verified(path: Path) -> str:
    """Read all of an image, weight or label file; what its checksums say, in words.

    LenetError where they say that it is damaged.
    """
    with open_regular(path, "a file of images, weights or labels") as file:
        start = file.read(forms.START)
    plain = start.startswith(_WITHOUT)
    if forms.form_of(start) is not None:
        return about(path).sums.said
    if not plain and not start.startswith(GZIP_MAGIC):
        return checksums.verify(path).said
    _read(path)
    return checksums.NONE if plain else "gzip's checksum right"


def _read(path: Path) -> None:
    import numpy as np

    with open_source(path) as source:
        part = np.empty((_AT_ONCE, *IMAGE_SHAPE), source.dtype)
        for lo in range(0, len(source), _AT_ONCE):
            source.read(lo, part[: len(source) - lo])


def shipped() -> list[tuple[str, str]]:
    """(what, found) rows of the weights and the digits that ship."""

    def row(find: Callable[[], Path]) -> str:
        try:
            path = find()
            return f"{path}, {verified(path)}"
        except LenetError as error:
            return str(error)

    return [("weights", row(assets.default_weights)), ("digits", row(assets.default_digits))]
