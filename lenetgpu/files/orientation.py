"""Polarity and transposition of images: detected on a sample, and changed on request."""

from dataclasses import dataclass, replace
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.errors import unexpected
from lenetgpu.files.reading import MemorySource, Source
from lenetgpu.network import IMAGE_SHAPE, PIXEL_SCALE

AUTO, BLACK = "auto", "black-on-white"
POLARITIES = (AUTO, "white-on-black", BLACK)
SAMPLE = 1000  # images that are looked at
# Transposition is reported if this share of at least _LEAST digits is wider than high. Of MNIST's
# digits 10 % are, at most 31 % of any hundred; of transposed ones 90 %.
_SURE, _LEAST = 2 / 3, 50
_LIGHT, _DARKER = 0.6, 0.02  # least mean of a light border, and how much darker the inside is


@dataclass(frozen=True)
class Orientation:
    """The orientation of stored images; the network expects upright white digits on black.

    Polarity "black-on-white" inverts them and `transpose` swaps rows and columns. Nothing else
    changes images; "auto" only makes `notes` mention dark digits.
    """

    polarity: str = AUTO
    transpose: bool = False

    def check(self, option: str) -> None:
        """Raise LenetError, naming the `option`, if the polarity is unknown."""
        if self.polarity not in POLARITIES:
            raise unexpected(option, ", ".join(POLARITIES), repr(self.polarity))

    @property
    def changes(self) -> bool:
        """True if images are changed."""
        return self.transpose or self.polarity == BLACK

    def of_pictures(self, as_is: bool) -> "Orientation":
        """Return the orientation of pictures; prepared ones are white on black already."""
        return self if as_is else replace(self, polarity=AUTO)

    def apply(self, images: Any) -> Any:
        """Return NumPy or CuPy images (..., 28, 28[, 1]) as the network expects them."""
        if self.transpose:
            images = images.swapaxes(*((-3, -2) if images.shape[-1] == 1 else (-2, -1)))
        if self.polarity == BLACK:
            images = ~images if images.dtype == np.uint8 else 1 - images
        return images

    def source(self, source: Source) -> Source:
        """Return a source of the changed images of `source`, which it owns."""
        if not self.changes:
            return source
        if isinstance(source, MemorySource):
            images = np.ascontiguousarray(self.apply(source.images))
            return MemorySource(images, source.labels, source.source)
        return _Oriented(source, self)

    def notes(self, source: Source) -> list[str]:
        """Return a sentence for each way in which the first images of `source` look unlike MNIST.

        Reads them as the network does: `source` has this orientation.
        """
        sample = np.empty((min(len(source), SAMPLE), *IMAGE_SHAPE), source.dtype)
        source.read(0, sample)
        return [f"{source.source}: {note}" for note in self.sentences(sample)]

    def sentences(self, images: Array) -> list[str]:
        """Return a sentence for each way in which `images` look unlike MNIST and stay so."""
        unasked = {"dark": self.polarity == AUTO, "transposed": not self.transpose}
        return [_NOTES[key] for key in unlike(images) if unasked[key]]


AS_STORED = Orientation()
_NOTES = {
    "dark": "images look dark on light, unlike MNIST's white digits on black; "
    "polarity black-on-white inverts them, white-on-black silences this note",
    "transposed": "digits look transposed, as in EMNIST's files; transpose swaps rows and columns",
}


class _Oriented(Source):
    """The images of another source, changed when they are read."""

    def __init__(self, inner: Source, orientation: Orientation) -> None:
        super().__init__(inner.source, inner.dtype, inner.labels, inner.selection)
        self._inner, self._orientation, self.inflated_from = inner, orientation, inner.inflated_from

    def _fill(self, first: int, out: Array) -> None:
        self._inner._fill(first, out)
        out[...] = self._orientation.apply(out.copy())

    def close(self) -> None:
        """Close the other source."""
        self._inner.close()


def unlike(images: Array) -> list[str]:
    """Return "dark" if uint8 or float images (n, 28, 28 in any layout) look dark on light.

    Adds "transposed" if most digits are wider than high. Blank images and noise are neither.
    """
    size = IMAGE_SHAPE[0]
    with np.errstate(all="ignore"):  # NaN and infinity are reported elsewhere
        pixels = images.reshape(-1, size, size).astype(np.float32)
        if images.dtype == np.uint8:
            pixels /= PIXEL_SCALE
        inside = pixels[:, 1:-1, 1:-1]
        border = (pixels.sum() - inside.sum()) / (len(pixels) * (size**2 - (size - 2) ** 2))
        dark = bool(border > max(_LIGHT, inside.mean() + _DARKER))
        spread = []  # variances of the ink along x and y
        for profile in (pixels.sum(axis=1), pixels.sum(axis=2)):
            ink = size - profile if dark else profile
            at, total = np.arange(size, dtype=np.float32), ink.sum(axis=1)
            spread.append(ink @ at**2 / total - (ink @ at / total) ** 2)
        drawn = np.isfinite(spread[0])
        wider = np.count_nonzero(spread[0] > spread[1])
    transposed = drawn.sum() >= _LEAST and wider > _SURE * drawn.sum()
    return [name for name, seen in (("dark", dark), ("transposed", transposed)) if seen]
