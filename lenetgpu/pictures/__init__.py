"""User pictures: located, read by Pillow, and prepared like MNIST."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lenetgpu.pictures.as_mnist import Prepared


def read_digit(path: str | PathLike[str], as_is: bool = False) -> Prepared:
    """Read a picture file's digit: `pixels` (28, 28) uint8, bright ink on black, and `notes`.

    `as_is`: only convert to grey and resize to 28x28. Raises LenetError naming the file if it
    is not a supported picture, damaged or too large, or shows no digit.
    """
    from lenetgpu.errors import LenetError
    from lenetgpu.pictures.as_mnist import Prepared, as_it_is, as_mnist, of_colours
    from lenetgpu.pictures.read import read_colours, read_grey

    grey, notes, size = read_grey(Path(path))
    try:
        made = as_it_is(grey, size) if as_is else as_mnist(grey)
    except LenetError as error:
        try:
            made = of_colours(read_colours(Path(path)))
        except LenetError:
            raise LenetError(f"{path}: {error}") from error
    return Prepared(made.pixels, (*notes, *made.notes))
