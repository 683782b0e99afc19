"""Paths of the shipped weights and digits, in the installed package or in the checkout."""

from __future__ import annotations

from pathlib import Path

from lenetgpu.errors import LenetError

PACKAGE = Path(__file__).resolve().parents[1]  # the package's folder


_BASES = (PACKAGE / "_shipped", PACKAGE.parent)
_WEIGHTS, _DIGITS = Path("weights", "lenet-mnist.h5"), Path("data", "digits-10k.h5")


def _find(name: Path) -> Path:
    for base in _BASES:
        if (base / name).is_file():
            return base / name
    raise LenetError(f"{name}: expected beside the package, found nothing; reinstall it")


def default_weights() -> Path:
    """Return the path of the weights that ship with the package."""
    return _find(_WEIGHTS)


def default_digits() -> Path:
    """Return the path of the 10,000 digits that ship with the package."""
    return _find(_DIGITS)


def shipped() -> list[Path]:
    """Return the paths of the shipped files that exist."""
    return [
        path for base in _BASES for name in (_WEIGHTS, _DIGITS) if (path := base / name).is_file()
    ]
