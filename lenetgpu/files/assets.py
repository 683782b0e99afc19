"""Where the shipped weights and digits lie: in the installed package or in the checkout."""

from __future__ import annotations

from pathlib import Path

from lenetgpu.errors import LenetError

_PACKAGE = Path(__file__).resolve().parents[1]


def _find(folder: str, name: str) -> Path:
    for base in (_PACKAGE / "_shipped", _PACKAGE.parent):
        path = base / folder / name
        if path.is_file():
            return path
    raise LenetError(f"{folder}/{name}: expected beside the package, found nothing; reinstall it")


def default_weights() -> Path:
    """Path of the weights that ship with the package."""
    return _find("weights", "lenet-mnist.h5")


def default_digits() -> Path:
    """Path of the 10,000 digits that ship with the package."""
    return _find("data", "digits-10k.h5")
