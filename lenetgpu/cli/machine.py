"""`lenetgpu variants`, `doctor`, `warmup` and `completion`: what there is, and making it ready."""

from __future__ import annotations

from pathlib import Path

import click

from lenetgpu.cli.ending import say
from lenetgpu.cli.options import AS_JSON, DEVICE, FILE, console, write_json
from lenetgpu.errors import LenetError


@click.command()
@click.argument("stage", required=False)
@click.option("--matrix", is_flag=True, help="stages by families: what runs, or why not")
@click.option(
    "--new",
    nargs=2,
    type=(str, FILE),
    metavar="KIND FOLDER",
    help="Write two files into FOLDER to start a variant of KIND (conv, pool, fc, argmax) from.",
)
@AS_JSON
def variants(stage: str | None, matrix: bool, new: tuple[str, Path] | None, as_json: bool) -> None:
    """List what can be switched, naive to fast: all, of STAGE (conv2) or of a kind (conv)."""
    if new is not None:
        _start(*new, beside=[stage, "--matrix" * matrix, "--json" * as_json])
        return
    from lenetgpu.commands import listing
    from lenetgpu.gpu.software import software
    from lenetgpu.show.listing import print_variants
    from lenetgpu.show.matrix import print_matrix
    from lenetgpu.stages.matrix import cells

    head = {"schema": 1, "command": "variants"}
    if matrix and as_json:
        found = [cell.as_json() for cell in cells(stage)]
        write_json(Path("-"), head | software(None) | {"matrix": found})
    elif matrix:
        print_matrix(console(), cells(stage))
    elif as_json:
        rows = listing.variant_rows(stage)
        write_json(Path("-"), head | software(None) | {"variants": rows})
    else:
        print_variants(console(), *listing.table_rows(stage))


def _start(kind: str, folder: Path, beside: list[str | None]) -> None:
    """`variants --new`, which takes nothing beside it."""
    from lenetgpu.commands.starting import start

    found = ", ".join(filter(None, beside))
    if found:
        raise LenetError(f"--new: expected nothing but KIND and FOLDER, found {found}")
    lines = start(kind, folder)
    width = max(len(what) for what, _ in lines)
    for what, found in lines:
        say(f"{what:{width}}  {found}")


@click.command()
@click.option("--repair", is_flag=True, help="empty the cache folder: compiled, checked, measured")
@AS_JSON
def doctor(repair: bool, as_json: bool) -> None:
    """Show the GPU, the libraries, the kernel cache and what would run."""
    from lenetgpu.commands import doctor as checkup

    if repair and as_json:
        raise LenetError("doctor: expected one of --repair and --json, found both")
    if repair:
        for line in checkup.repaired():
            say(line)
        return
    if as_json:
        write_json(Path("-"), checkup.as_json())
        return
    for what, found in checkup.findings():
        say(f"{what:13} {found}")


@click.command()
@DEVICE
def warmup(device: str) -> None:
    """Compile every variant of the network for this machine now; on a GPU, measure plan auto."""
    from lenetgpu.check.warmup import warm_up
    from lenetgpu.device import choose_device
    from lenetgpu.measure.choice import choose_all

    gpu, why = choose_device(device)
    count, seconds = warm_up(gpu)
    for choice in choose_all(gpu) if gpu is not None else ():
        say(f"auto {choice.precision:7} {choice}")
    say(f"{count} variants ready for {gpu.name if gpu else 'cpu'} ({why}), {seconds:.1f} s")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, /, shell: str) -> None:
    """Print the completion script of SHELL; for bash: eval "$(lenetgpu completion bash)"."""
    from click.shell_completion import get_completion_class

    chosen = get_completion_class(shell)
    if chosen is None:
        raise LenetError(f"completion: expected a shell that click completes, found {shell}")
    main = ctx.find_root().command
    click.echo(chosen(main, {}, "lenetgpu", "_LENETGPU_COMPLETE").source())
