"""The command line's groups for files: `lenetgpu data ...` and `lenetgpu weights ...`."""

from __future__ import annotations

from pathlib import Path

import click

from lenetgpu.cli.ending import say
from lenetgpu.cli.options import FILE


@click.group()
def data() -> None:
    """Look at image files, convert them, fetch MNIST."""


@data.command("info")
@click.argument("file", type=FILE, required=False)
def data_info(file: Path | None) -> None:
    """Say what FILE holds (default: the digits that ship)."""
    from lenetgpu.commands import listing
    from lenetgpu.files import assets

    for what, found in listing.data_rows(file or assets.default_digits()):
        say(f"{what:13} {found}")


@data.command("verify")
@click.argument("file", type=FILE, required=False)
def data_verify(file: Path | None) -> None:
    """Compare FILE (images, labels or weights) with its checksums; exit code 2 where damaged."""
    from lenetgpu.commands.verified import verified
    from lenetgpu.files import assets

    path = file or assets.default_digits()
    say(f"{path}: {verified(path)}")


@data.command("convert")
@click.argument("source", type=FILE)
@click.argument("target", type=FILE)
def data_convert(source: Path, target: Path) -> None:
    """Write the images and labels of SOURCE (HDF5, IDX or .npy) to TARGET in the course's HDF5."""
    from lenetgpu.files.convert import convert_data

    count = convert_data(source, target)
    say(f"{target}: {count:,} images")


@data.command("pack")
@click.argument("source", type=FILE)
@click.argument("target", type=FILE)
def data_pack(source: Path, target: Path) -> None:
    """Write the uint8 images and labels of SOURCE to TARGET in a quarter of the bytes, losslessly.

    Every command takes the packed file like any other; docs/packed.md says what is in it.
    """
    from lenetgpu.files.packed.write import pack_data
    from lenetgpu.show.progress import progress_bar

    with progress_bar(True, "images packed") as progress:
        packed = pack_data(source, target, progress)
    say(f"{target}: {packed.images:,} images, {packed.said}")


@data.command("fetch-mnist")
@click.argument("folder", type=FILE)
@click.option("--mirror", multiple=True, help="base address to try instead of the known ones")
def fetch_mnist_command(folder: Path, mirror: tuple[str, ...]) -> None:
    """Download the real MNIST into FOLDER, checked against pinned SHA-256 sums."""
    from lenetgpu.files.mnist import MIRRORS, fetch_mnist

    fetch_mnist(folder, mirror or MIRRORS, say)


@click.group()
def weights() -> None:
    """Look at weight files, check them, convert them."""


@weights.command("info")
@click.argument("file", type=FILE, required=False)
def weights_info(file: Path | None) -> None:
    """Say what FILE holds and where it came from (default: the weights that ship)."""
    from lenetgpu.commands import listing
    from lenetgpu.files import assets

    for what, found in listing.weight_rows(file or assets.default_weights()):
        say(f"{what:13} {found}")


@weights.command("verify")
@click.argument("file", type=FILE)
def weights_verify(file: Path) -> None:
    """Check that FILE holds the network's four arrays, finite and as their checksums say.

    FILE may have any form that `convert` reads. Float32 has to hold the scores that the arrays
    give, too; exit code 2 where one of these is not so.
    """
    from lenetgpu.check.fit import truth
    from lenetgpu.commands.verified import verified
    from lenetgpu.files.weights import load_weights

    truth(load_weights(file), "uint8")
    say(f"{file}: right; {verified(file)}")


@weights.command("convert")
@click.argument("source", type=FILE)
@click.argument("target", type=FILE)
def weights_convert(source: Path, target: Path) -> None:
    """Write the weights of SOURCE to TARGET as float32, in the form that TARGET's ending names.

    The endings are .h5 and .hdf5 (HDF5), .safetensors, .pt and .pth (a PyTorch state_dict), .onnx,
    and .npz (NumPy). SOURCE may have any of these forms, of any float type; its first bytes decide
    which. ONNX needs the extra `models`, a state_dict needs PyTorch.
    """
    from lenetgpu.files.convert import convert_weights

    form = convert_weights(source, target)
    say(f"{target}: float32, {form}")
