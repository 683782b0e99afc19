"""The command line's groups for files: `lenetgpu data ...` and `lenetgpu weights ...`."""

from __future__ import annotations

from pathlib import Path

import click

from lenetgpu.cli.ending import say
from lenetgpu.cli.help import Commands
from lenetgpu.cli.options import FOLDER, argument, option, print_pairs


@click.group(cls=Commands)
def data() -> None:
    """Look at image files, convert them, fetch MNIST."""


@data.command("info")
@argument("file", "An image file; without it, the digits that ship.", required=False)
def data_info(file: Path | None) -> None:
    """Say what an image file holds."""
    from lenetgpu.files import assets
    from lenetgpu.lab.listing import data_rows

    print_pairs(data_rows(file or assets.default_digits()))


@data.command("verify")
@argument("file", "Images, labels or weights; without it, the digits that ship.", required=False)
def data_verify(file: Path | None) -> None:
    """Compare a file with its checksums; the exit code is 2 where it is damaged."""
    from lenetgpu.files import assets
    from lenetgpu.lab.listing import verified

    path = file or assets.default_digits()
    say(f"{path}: {verified(path)}")


@data.command("convert")
@argument("source", "Images in HDF5, IDX or .npy form.")
@argument("target", "HDF5 file to write.")
def data_convert(source: Path, target: Path) -> None:
    """Write images and labels to a file in the course's HDF5."""
    from lenetgpu.files.convert import convert_data

    say(f"{target}: {convert_data(source, target):,} images")


@data.command("fetch-mnist")
@argument("folder", "Where its four files go.", type=FOLDER)
@option(
    "--mirror URL",
    "Base address to try; may be repeated.",
    multiple=True,
    show_default="the known ones",
)
def fetch_mnist_command(folder: Path, mirror: tuple[str, ...]) -> None:
    """Download the real MNIST into a folder, checked against pinned SHA-256 sums."""
    from lenetgpu.files.mnist import MIRRORS, fetch_mnist

    fetch_mnist(folder, mirror or MIRRORS, say)


@click.group(cls=Commands)
def weights() -> None:
    """Look at weight files, check them, convert them."""


@weights.command("info")
@argument("file", "A weight file; without it, the weights that ship.", required=False)
def weights_info(file: Path | None) -> None:
    """Say what a weight file holds and where it came from."""
    from lenetgpu.files import assets
    from lenetgpu.lab.listing import weight_rows

    print_pairs(weight_rows(file or assets.default_weights()))


@weights.command("verify")
@argument("file", "A weight file.")
def weights_verify(file: Path) -> None:
    """Check that a file holds the network's four arrays, finite and as their checksums say.

    FILE may have any form that `convert` reads. Float32 has to hold the scores that the arrays
    give, too. The exit code is 2 where one of these is not so.
    """
    from lenetgpu.check.fit import truth
    from lenetgpu.files.weights import load_weights
    from lenetgpu.lab.listing import verified

    truth(load_weights(file), "uint8")
    say(f"{file}: right; {verified(file)}")


@weights.command("convert")
@argument("source", "Weights of any float type or byte order.")
@argument("target", "File to write, in the form that its ending names.")
def weights_convert(source: Path, target: Path) -> None:
    """Write weights to a file as float32, in the form that the file's ending names.

    The endings are .h5 and .hdf5 (HDF5), .safetensors, .pt and .pth (a PyTorch state_dict), .onnx,
    and .npz (NumPy). SOURCE may have any of these forms, of any float type; its first bytes decide
    which. ONNX needs the extra `models`, a state_dict needs PyTorch.
    """
    from lenetgpu.files.convert import convert_weights

    say(f"{target}: float32, {convert_weights(source, target)}")
