"""Paths of the shipped weights and digits, in the installed package or in the checkout."""

from pathlib import Path

from lenetgpu.errors import LenetError

PACKAGE = Path(__file__).resolve().parents[1]  # the package's folder
_WEIGHTS, _DIGITS = "weights/lenet-mnist.h5", "data/digits-10k.h5"


def shipped(*names: str) -> list[Path]:
    """Return the paths of the shipped files, or of those of `names`, that exist."""
    paths = (base / name for base in (PACKAGE / "_shipped", PACKAGE.parent)
             for name in names or (_WEIGHTS, _DIGITS))  # fmt: skip
    return [path for path in paths if path.is_file()]


def _find(name: str) -> Path:
    paths = shipped(name)
    if not paths:
        raise LenetError(f"{name}: file of the package not found; reinstall lenetgpu")
    return paths[0]


def default_weights() -> Path:
    """Return the path of the weights that ship with the package."""
    return _find(_WEIGHTS)


def default_digits() -> Path:
    """Return the path of the 10,000 digits that ship with the package."""
    return _find(_DIGITS)
