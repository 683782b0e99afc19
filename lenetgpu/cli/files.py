"""The command line's groups for files: `lenetgpu data ...` and `lenetgpu weights ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lenetgpu.cli.ending import say
from lenetgpu.cli.help import Argument, Commands
from lenetgpu.cli.options import FILE, FOLDER, Decorator, print_pairs


def _one(name: str, explained: str, **how: Any) -> Decorator:
    """A positional argument that is a file, with the sentence that says which."""
    return click.argument(name, cls=Argument, explained=explained, **{"type": FILE} | how)


@click.group(cls=Commands)
def data() -> None:
    """Look at image files, convert them, fetch MNIST."""


@data.command("info")
@_one("file", "An image file; without it, the digits that ship.", required=False)
def data_info(file: Path | None) -> None:
    """Say what an image file holds."""
    from lenetgpu.files import assets
    from lenetgpu.lab.listing import data_rows

    print_pairs(data_rows(file or assets.default_digits()))


@data.command("verify")
@_one("file", "Images, labels or weights; without it, the digits that ship.", required=False)
def data_verify(file: Path | None) -> None:
    """Compare a file with its checksums; the exit code is 2 where it is damaged."""
    from lenetgpu.files import assets
    from lenetgpu.lab.listing import verified

    path = file or assets.default_digits()
    say(f"{path}: {verified(path)}")


@data.command("convert")
@_one("source", "Images in HDF5, IDX or .npy form.")
@_one("target", "HDF5 file to write.")
def data_convert(source: Path, target: Path) -> None:
    """Write images and labels to a file in the course's HDF5."""
    from lenetgpu.files.convert import convert_data

    say(f"{target}: {convert_data(source, target):,} images")


@data.command("fetch-mnist")
@_one("folder", "Where its four files go.", type=FOLDER)
@click.option(
    "--mirror",
    multiple=True,
    metavar="URL",
    show_default="the known ones",
    help="Base address to try; may be repeated.",
)
def fetch_mnist_command(folder: Path, mirror: tuple[str, ...]) -> None:
    """Download the real MNIST into a folder, checked against pinned SHA-256 sums."""
    from lenetgpu.files.mnist import MIRRORS, fetch_mnist

    fetch_mnist(folder, mirror or MIRRORS, say)


@click.group(cls=Commands)
def weights() -> None:
    """Look at weight files, check them, convert them."""


@weights.command("info")
@_one("file", "A weight file; without it, the weights that ship.", required=False)
def weights_info(file: Path | None) -> None:
    """Say what a weight file holds and where it came from."""
    from lenetgpu.files import assets
    from lenetgpu.lab.listing import weight_rows

    print_pairs(weight_rows(file or assets.default_weights()))


@weights.command("verify")
@_one("file", "A weight file.")
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
@_one("source", "Weights of any float type or byte order.")
@_one("target", "File to write, in the form that its ending names.")
def weights_convert(source: Path, target: Path) -> None:
    """Write weights to a file as float32, in the form that the file's ending names.

    The endings are .h5 and .hdf5 (HDF5), .safetensors, .pt and .pth (a PyTorch state_dict), .onnx,
    and .npz (NumPy). SOURCE may have any of these forms, of any float type; its first bytes decide
    which. ONNX needs the extra `models`, a state_dict needs PyTorch.
    """
    from lenetgpu.files.convert import convert_weights

    say(f"{target}: float32, {convert_weights(source, target)}")
