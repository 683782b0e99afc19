"""`lenetgpu data` and `lenetgpu weights`."""

from __future__ import annotations

from pathlib import Path

import click

from lenetgpu.cli.ending import print_pairs, say
from lenetgpu.cli.help import Commands
from lenetgpu.cli.options import FOLDER, argument, option


@click.group(cls=Commands)
def data() -> None:
    """Inspect, verify and convert image files; download MNIST."""


@data.command("info")
@argument("file", "An image file. Default: the digits that ship.", required=False)
def data_info(file: Path | None) -> None:
    """Describe an image file."""
    from lenetgpu.files import assets
    from lenetgpu.lab.listing import data_rows

    print_pairs(data_rows(file or assets.default_digits()))


@data.command("verify")
@argument("file", "Images, labels or weights. Default: the digits that ship.", required=False)
def data_verify(file: Path | None) -> None:
    """Compare a file with its checksums; exit with 2 if it is damaged."""
    from lenetgpu.files import assets
    from lenetgpu.lab.listing import verified

    path = file or assets.default_digits()
    say(f"{path}: {verified(path)}")


@data.command("convert")
@argument("source", "Images as HDF5, IDX or .npy.")
@argument("target", "HDF5 file to write.")
def data_convert(source: Path, target: Path) -> None:
    """Convert images and labels to HDF5 in the course's layout."""
    from lenetgpu.files.convert import convert_data

    say(f"{target}: {convert_data(source, target):,} images")


@data.command("fetch-mnist")
@argument("folder", "Folder for the four files.", type=FOLDER)
@option(
    "--mirror URL",
    "Base URL to try; may be repeated.",
    multiple=True,
    show_default="the known ones",
)
def fetch_mnist_command(folder: Path, mirror: tuple[str, ...]) -> None:
    """Download MNIST to a folder and verify its SHA-256 sums."""
    from lenetgpu.files.mnist import MIRRORS, fetch_mnist

    fetch_mnist(folder, mirror or MIRRORS, say)


@click.group(cls=Commands)
def weights() -> None:
    """Inspect, verify and convert weight files."""


@weights.command("info")
@argument("file", "A weight file. Default: the weights that ship.", required=False)
def weights_info(file: Path | None) -> None:
    """Describe a weight file and its origin."""
    from lenetgpu.files import assets
    from lenetgpu.lab.listing import weight_rows

    print_pairs(weight_rows(file or assets.default_weights()))


@weights.command("verify")
@argument("file", "A weight file.")
def weights_verify(file: Path) -> None:
    """Verify a weight file: four finite arrays, right checksums, scores within float32.

    FILE may have any format that `convert` reads. Exits with 2 if a check fails.
    """
    from lenetgpu.check.fit import expected_scores
    from lenetgpu.files.weights import load_weights
    from lenetgpu.lab.listing import verified

    expected_scores(load_weights(file), "uint8")
    say(f"{file}: right; {verified(file)}")


@weights.command("convert")
@argument("source", "Weights of any float type or byte order.")
@argument("target", "File to write; the suffix selects the format.")
def weights_convert(source: Path, target: Path) -> None:
    """Convert weights to float32 in another format.

    Suffixes: .h5 and .hdf5 (HDF5), .safetensors, .pt and .pth (PyTorch state_dict), .onnx, .npz
    (NumPy). SOURCE may have any of these formats, recognised by its first bytes, and any float
    type. ONNX needs the extra `models`, state_dict needs PyTorch.
    """
    from lenetgpu.files.convert import convert_weights

    say(f"{target}: float32, {convert_weights(source, target)}")
