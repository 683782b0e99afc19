"""Build data/digits-10k.h5: UCI handwritten digits redrawn in the layout of MNIST.

The source is the 1,797 8x8 images that scikit-learn carries (``load_digits``), the test part
of Optical Recognition of Handwritten Digits (Alpaydin & Kaynak, 1998, CC BY 4.0).
"""

import hashlib
import io
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from sklearn.datasets import load_digits

from lenetgpu.files import checksums, hdf5
from lenetgpu.store import write_atomically

U8 = NDArray[np.uint8]
F64 = NDArray[np.float64]

SEED = 20261120
IMAGES = 10_000
CLASSES = 10
# The file is ordered by writer; a writer starts at 1157 and the next one at 1287, so the
# originals 1197..1286 belong to neither part and the two parts share no writer.
EVAL_STOP = 1197
TRAIN_START = 1287

SIDE = 28
BOX = 20
OVERSAMPLE = 3
UNSHARP = 1.0
INK_LOW = 0.40
INK_HIGH = 0.95
MAX_ROTATION_DEG = 6.0
MAX_SHEAR = 0.10
MAX_LOG_SCALE = 0.07
MAX_SHIFT_PX = 0.5


def _fine_grid(digit: F64, matrix: F64, shift: F64, side: int) -> F64:
    """Cubic-spline samples of an (8, 8) digit on a (side, side) grid, centred on both sides."""
    center_in = (np.array(digit.shape) - 1) / 2
    center_out = np.full(2, (side - 1) / 2) + shift
    return ndimage.affine_transform(
        digit, matrix, center_in - matrix @ center_out, (side, side), order=3, mode="constant"
    )


def _ink(values: F64) -> F64:
    """Map spline samples to ink in 0..1 with the steep edges of an anti-aliased pen stroke."""
    t = np.clip((values - INK_LOW) / (INK_HIGH - INK_LOW), 0.0, 1.0)
    return t * t * (3 - 2 * t)


def render(digit: F64, rng: np.random.Generator) -> U8:
    """Redraw one (8, 8) digit in 0..1 as a (28, 28) uint8 MNIST-style image.

    A random mild affine map is applied, the ink is scaled to a 20-pixel box, and its centre of
    mass is put at the image centre within ``MAX_SHIFT_PX``.
    """
    angle = np.deg2rad(rng.uniform(-MAX_ROTATION_DEG, MAX_ROTATION_DEG))
    shear = rng.uniform(-MAX_SHEAR, MAX_SHEAR)
    scale = np.exp(rng.uniform(-MAX_LOG_SCALE, MAX_LOG_SCALE, 2))
    jitter = rng.uniform(-MAX_SHIFT_PX, MAX_SHIFT_PX, 2)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    warp = rotation @ np.array([[1.0, 0.0], [shear, 1.0]]) @ np.diag(scale)

    padded = np.pad(digit, 3)
    padded += UNSHARP * (padded - ndimage.gaussian_filter(padded, 0.8, mode="constant"))
    side = SIDE * OVERSAMPLE
    pitch = len(padded) / side
    draft = _ink(_fine_grid(padded, warp * pitch, np.zeros(2), side)) > 0.5
    rows, cols = np.flatnonzero(draft.any(1)), np.flatnonzero(draft.any(0))
    extent = max(np.ptp(rows), np.ptp(cols)) + 1
    matrix = warp * pitch * extent / (BOX * OVERSAMPLE)

    mass = ndimage.center_of_mass(_ink(_fine_grid(padded, matrix, np.zeros(2), side)))
    shift = (side - 1) / 2 - np.array(mass) + jitter * OVERSAMPLE
    fine = _ink(_fine_grid(padded, matrix, shift, side))
    image = fine.reshape(SIDE, OVERSAMPLE, SIDE, OVERSAMPLE).mean((1, 3))
    return np.rint(255 * image).astype(np.uint8)


def _originals(start: int, stop: int | None) -> tuple[F64, U8]:
    """Digits (n, 8, 8) float64 in 0..1 and labels (n,) uint8 of a contiguous file range."""
    digits = load_digits()
    return digits.images[start:stop] / 16.0, digits.target[start:stop].astype(np.uint8)


def _balanced(x: F64, y: U8, count: int, rng: np.random.Generator) -> tuple[U8, U8]:
    """Render ``count`` images, count / 10 per class, each original used equally often (+-1)."""
    picks = np.concatenate(
        [np.resize(np.flatnonzero(y == label), count // CLASSES) for label in range(CLASSES)]
    )
    picks = rng.permutation(picks)
    return np.stack([render(x[i], rng) for i in picks]), y[picks]


def evaluation_part() -> tuple[U8, U8]:
    """Images (10000, 28, 28) uint8 and labels (10000,) uint8 of digits-10k."""
    return _balanced(*_originals(0, EVAL_STOP), IMAGES, np.random.default_rng(SEED))


def training_part(count: int = 5_000) -> tuple[U8, U8]:
    """Images (count, 28, 28) uint8 and labels (count,) uint8 of writers not in digits-10k."""
    return _balanced(*_originals(TRAIN_START, None), count, np.random.default_rng(SEED + 1))


def write(path: Path, x: U8, y: U8) -> None:
    """Write /x and /y with their checksums, without timestamps."""
    buffer = io.BytesIO()
    packed = {"compression": "gzip", "compression_opts": 9, "shuffle": True}
    with hdf5.new_hdf5(buffer) as (file, _):
        images = checksums.Rows(file, "x", x.shape, x.dtype, 1_000, True, **packed)
        for lo in range(0, len(x), images.rows):
            images.add(x[lo : lo + images.rows])
        checksums.write(file, "y", y, **packed)
        checksums.sum_up(file)
    write_atomically(path, buffer.getvalue())


@click.command()
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path(__file__).resolve().parent.parent / "data" / "digits-10k.h5",
    show_default=True,
)
def main(out: Path) -> None:
    """Render digits-10k and write it to OUT."""
    x, y = evaluation_part()
    write(out, x, y)
    click.echo(f"{out}: {len(x)} images, {out.stat().st_size} bytes")
    click.echo(f"file    sha256 {hashlib.sha256(out.read_bytes()).hexdigest()}")
    click.echo(f"content sha256 {hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()}")


if __name__ == "__main__":
    main()
