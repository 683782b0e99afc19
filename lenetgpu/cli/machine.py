"""`lenetgpu variants`, `doctor`, `warmup` and `completion`."""

from __future__ import annotations

from pathlib import Path

import click

from lenetgpu.cli import options as shared
from lenetgpu.cli.ending import console, print_pairs, say, write_json
from lenetgpu.cli.help import Command
from lenetgpu.cli.options import argument, option
from lenetgpu.errors import LenetError


@click.command(cls=Command)
@argument(
    "stage",
    "A stage (conv2), span (conv1+pool1) or kind (conv). Default: all.",
    type=str,
    required=False,
)
@option("--matrix", "Show all stages and families, with reasons for gaps.")
@option(
    "--new KIND FOLDER",
    "Write two template files for a new variant of KIND (conv, pool, fc, argmax) to FOLDER.",
    nargs=2,
    type=(str, shared.FILE),
)
@shared.AS_JSON
def variants(stage: str | None, matrix: bool, new: tuple[str, Path] | None, as_json: bool) -> None:
    """List all variants, slowest to fastest; * marks those that run here."""
    from lenetgpu.gpu.software import software
    from lenetgpu.lab import listing
    from lenetgpu.stages.matrix import cells

    if new is not None:
        if others := ", ".join(filter(None, [stage, "--matrix" * matrix, "--json" * as_json])):
            raise LenetError(f"--new: expected nothing but KIND and FOLDER, found {others}")
        lines = listing.start(*new)
        width = max(len(label) for label, _ in lines)
        for label, text in lines:
            say(f"{label:{width}}  {text}")
    elif as_json:
        rows = [c.as_json() for c in cells(stage)] if matrix else listing.variant_rows(stage)
        head = {"schema": 1, "command": "variants"} | software(None)
        write_json(Path("-"), head | {"matrix" if matrix else "variants": rows})
    elif matrix:
        out = console()
        listing.print_lines(out, listing.matrix_lines(cells(stage), out.width))
        out.print(f"on this machine: {listing.machine()}")
    else:
        out = console()
        listing.print_lines(out, listing.variant_lines(*listing.table_rows(stage), out.width))


@click.command(cls=Command)
@option("--repair", "Empty the cache of compiled kernels, checks and measurements.")
@shared.AS_JSON
def doctor(repair: bool, as_json: bool) -> None:
    """Show the GPU, libraries, cache and the plans that would run."""
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
@shared.DEVICE
def warmup(device: str) -> None:
    """Compile every variant for this machine in advance; on a GPU, also measure plan auto."""
    from lenetgpu.check.warmup import warm_up
    from lenetgpu.dispatch.auto import choose_all
    from lenetgpu.plan import choose_device

    gpu, why = choose_device(device)
    count, seconds = warm_up(gpu)
    for choice in choose_all(gpu) if gpu is not None else ():
        say(f"auto {choice.precision:7} {choice}")
    say(f"{count} variants ready for {gpu.name if gpu else 'cpu'} ({why}), {seconds:.1f} s")


@click.command(cls=Command)
@argument(
    "shell",
    "One of bash, zsh or fish.",
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
