"""The group `lenetgpu`, and the commands that classify and time nothing."""

from pathlib import Path
from typing import Any

import click

from lenetgpu import __version__
from lenetgpu.cli import run
from lenetgpu.cli.ending import console, ended, print_pairs, require_streams, say, write_json
from lenetgpu.cli.help import SETTINGS, Argument, Command, Commands
from lenetgpu.cli.options import declared
from lenetgpu.cli.signals import INTERRUPTED, stoppable
from lenetgpu.errors import LenetError

_FEWEST_READ = 0.6  # share of the shipped digits below which `weights verify` warns


class Group(Commands):
    """Group of all commands; errors end in one sentence and an exit code."""

    def make_context(self, *words: Any, **more: Any) -> click.Context:
        """Parse a command line; errors and --help end like a command."""
        with ended():
            require_streams()
            return super().make_context(*words, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ctrl-C ends it with 130."""
        try:
            run = ended()(super().invoke)
            return stoppable(lambda: run(ctx))
        except KeyboardInterrupt:
            say("lenetgpu: interrupted", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=Group, context_settings=SETTINGS)
@click.version_option(__version__)
def main() -> None:
    """Classify handwritten digits with LeNet on a GPU or CPU; choose an algorithm per stage."""


@click.group(cls=Commands)
def data() -> None:
    """Inspect, verify and convert image files; download MNIST."""


@data.command("info")
@declared("data info")
def data_info(file: Path | None) -> None:
    """Describe an image file."""
    from lenetgpu.files import assets
    from lenetgpu.lab.listing import data_rows

    print_pairs(data_rows(file or assets.default_digits()))


@data.command("verify")
@declared("data verify")
def data_verify(file: Path | None) -> None:
    """Verify the checksums of a file; exit with 2 if it is damaged."""
    from lenetgpu.files import assets
    from lenetgpu.lab.listing import verified

    path = file or assets.default_digits()
    say(f"{path}: {verified(path)}")


@data.command("convert")
@declared("data convert")
def data_convert(source: Path, target: Path) -> None:
    """Convert images and labels to HDF5 in the course's layout."""
    from lenetgpu.files.convert import convert_data

    say(f"{target}: {convert_data(source, target):,} images")


@data.command("fetch-mnist")
@declared("data fetch-mnist")
def fetch_mnist_command(folder: Path, mirror: tuple[str, ...]) -> None:
    """Download MNIST to a folder and verify its SHA-256 sums."""
    from lenetgpu.files.mnist import MIRRORS, fetch_mnist

    fetch_mnist(folder, mirror or MIRRORS, say)


@click.group(cls=Commands)
def weights() -> None:
    """Inspect, verify and convert weight files."""


@weights.command("info")
@declared("weights info")
def weights_info(file: Path | None) -> None:
    """Describe a weight file and its origin."""
    from lenetgpu.files import assets
    from lenetgpu.lab.listing import weight_rows

    print_pairs(weight_rows(file or assets.default_weights()))


@weights.command("verify")
@declared("weights verify")
def weights_verify(file: Path) -> None:
    """Verify a weight file: arrays, finite values, checksums, and range of the scores.

    FILE may have any format that `weights convert` reads. Also prints how many of the shipped
    digits it labels correctly, and warns if they are few. The exit code is 2 if a check fails.
    """
    from lenetgpu.check.fit import digits_read, expected_scores
    from lenetgpu.files.weights import load_weights
    from lenetgpu.lab.listing import verified

    expected_scores(weights := load_weights(file), "uint8")
    correct, count = digits_read(weights)
    say(f"{file}: valid; reads {correct:,} of the {count:,} digits that ship; {verified(file)}")
    if correct < _FEWEST_READ * count:
        advice = "try another layout (fc1's rows, filters turned or flipped: docs/weights-forms.md)"
        say(f"lenetgpu: warning: few digits are read; if trained, {advice}", err=True)


@weights.command("convert")
@declared("weights convert")
def weights_convert(source: Path, target: Path) -> None:
    """Convert weights to float32 in another format.

    Suffixes: .h5 and .hdf5 (HDF5), .safetensors, .pt and .pth (PyTorch state_dict), .onnx, .npz
    (NumPy). SOURCE may have any of these formats, recognised by its first bytes, and any float
    type. ONNX requires the extra `models`, state_dict requires PyTorch.
    """
    from lenetgpu.files.convert import convert_weights

    say(f"{target}: float32, {convert_weights(source, target)}")


@click.command(cls=Command)
@declared("variants")
def variants(stage: str | None, matrix: bool, new: tuple[str, Path] | None, as_json: bool) -> None:
    """List variants, from naive to fast; * marks those that run on this machine."""
    from lenetgpu.gpu.software import software
    from lenetgpu.lab import listing
    from lenetgpu.stages.matrix import cells

    out = console()
    if new is not None:
        if others := ", ".join(filter(None, [stage, "--matrix" * matrix, "--json" * as_json])):
            raise LenetError(f"--new: expected only KIND and FOLDER, found {others}")
        lines = listing.start(*new)
        width = max(len(label) for label, _ in lines)
        for label, text in lines:
            say(f"{label:{width}}  {text}")
    elif as_json:
        rows = [c.as_json() for c in cells(stage)] if matrix else listing.variant_rows(stage)
        head = {"schema": 1, "command": "variants"} | software(None)
        write_json(Path("-"), head | {"matrix" if matrix else "variants": rows})
    elif matrix:
        listing.print_lines(out, listing.matrix_lines(cells(stage), out.width))
        out.print(f"on this machine: {listing.machine()}")
    else:
        listing.print_lines(out, listing.variant_lines(*listing.table_rows(stage), out.width))


@click.command(cls=Command)
@declared("doctor")
def doctor(repair: bool, as_json: bool) -> None:
    """Show the GPU, libraries, cache, and the plans that run on this machine."""
    from lenetgpu.lab import doctor as checkup

    if repair and as_json:
        raise LenetError("doctor: expected one of --repair and --json, found both")
    if repair:
        for line in checkup.repaired():
            say(line)
    elif as_json:
        write_json(Path("-"), checkup.as_json())
    else:
        print_pairs(checkup.findings())


@click.command(cls=Command)
@declared("warmup")
def warmup(device: str) -> None:
    """Compile every variant in advance; on a GPU, also measure the plans for `--plan auto`."""
    from lenetgpu.check.warmup import warm_up
    from lenetgpu.dispatch.auto import choose_all
    from lenetgpu.plan import choose_device

    gpu, why = choose_device(device)
    count, seconds = warm_up(gpu)
    for choice in choose_all(gpu) if gpu is not None else ():
        say(f"auto {choice.precision:7} {choice}")
    say(f"{count} variants ready for {gpu.name if gpu else 'cpu'} ({why}), {seconds:.1f} s")


@click.command(cls=Command)
@click.argument(
    "shell",
    cls=Argument,
    explained="bash, zsh or fish.",
    metavar="SHELL",
    type=click.Choice(["bash", "zsh", "fish"]),
)
@click.pass_context
def completion(ctx: click.Context, /, shell: str) -> None:
    """Print a shell completion script.

    Add the line for your shell to ~/.bashrc, to ~/.zshrc after compinit, or to config.fish:

    \b
    bash: eval "$(lenetgpu completion bash)"
    zsh:  eval "$(lenetgpu completion zsh)"
    fish: lenetgpu completion fish | source
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    root = ctx.find_root().command
    script = completion_class(root, {}, "lenetgpu", "_LENETGPU_COMPLETE").source()
    click.echo(script.rstrip("\n"))


for _command in (
    run.infer, run.profile, run.classify, run.report, run.compare, run.conv,
    variants, doctor, warmup, completion, data, weights,
):  # fmt: skip
    main.add_command(_command)
