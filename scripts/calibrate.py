"""Store in a weights file the largest output of pool1, which the int8 plan takes as 255.

Without IMAGES (HDF5 or IDX) it is found on the shipped digits, as the plan does by itself.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click
import h5py

from lenetgpu.errors import LenetError
from lenetgpu.files.calibration import largest_pooled
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import ATTRIBUTE, LARGEST_POOLED, load_weights
from lenetgpu.store import write_atomically


def calibrate(weights: Path, images: Path | None, limit: int) -> float:
    """Write the largest pooled activation into `weights`; LenetError where there is none."""
    held = load_weights(weights)
    digits = None if images is None else load_dataset(images).images[:limit]
    largest = largest_pooled(held["conv1"], digits)
    least, most = LARGEST_POOLED
    if not least <= largest <= most:
        raise LenetError(
            f"{weights}: expected pooled activations of at most {least:g} to {most:g}, "
            f"found {largest:g}"
        )
    buffer = io.BytesIO(weights.read_bytes())
    with h5py.File(buffer, "r+") as file:
        file["conv1"].attrs[ATTRIBUTE] = largest
    write_atomically(weights, buffer.getvalue())
    return largest


@click.command()
@click.argument("weights", type=click.Path(path_type=Path))
@click.argument("images", type=click.Path(path_type=Path), required=False)
@click.option("--limit", type=click.IntRange(min=1), default=10_000, show_default=True,
              help="Images to look at, of IMAGES.")  # fmt: skip
def main(weights: Path, images: Path | None, limit: int) -> None:
    """Calibrate WEIGHTS on IMAGES, such as MNIST's training images."""
    try:
        largest = calibrate(weights, images, limit)
    except LenetError as error:
        click.echo(f"calibrate: error: {error}", err=True)
        sys.exit(2)
    click.echo(f"{weights}: largest pooled activation {largest:.4f}")


if __name__ == "__main__":
    main()
