"""Store in a weights file the largest output of pool1, which the int8 plan takes as 255.

Without IMAGES (HDF5 or IDX) it is found on the shipped digits, as the plan does by itself.
"""

from __future__ import annotations

from pathlib import Path

import click
import h5py

from lenetgpu.calibration import largest_pooled
from lenetgpu.dataset import load_dataset
from lenetgpu.weights import ATTRIBUTE, load_weights


@click.command()
@click.argument("weights", type=click.Path(path_type=Path))
@click.argument("images", type=click.Path(path_type=Path), required=False)
@click.option("--limit", default=10_000, show_default=True, help="Images to look at.")
def main(weights: Path, images: Path | None, limit: int) -> None:
    """Calibrate WEIGHTS on IMAGES, such as MNIST's training images."""
    held = load_weights(weights)
    digits = None if images is None else load_dataset(images).images[:limit]
    largest = largest_pooled(held["conv1"], digits)
    with h5py.File(weights, "r+") as file:
        file["conv1"].attrs[ATTRIBUTE] = largest
    click.echo(f"{weights}: largest pooled activation {largest:.4f}")


if __name__ == "__main__":
    main()
