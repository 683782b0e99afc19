"""lenetgpu beside its peers: which comparison, by a flag; its own options come after it.

peers.py                 images on a GPU to labels there (device_peers.py)
peers.py --end-to-end    page-locked images to labels in host memory (end_to_end.py)
peers.py --one           one image, host to label (one_image.py)
peers.py --cold          fresh processes (cold_start.py)
peers.py --cpu           images to labels on a CPU (cpu_peers.py)
"""

from __future__ import annotations

import importlib
from typing import Any

import click

SCRIPTS = {
    "end-to-end": "end_to_end",
    "one": "one_image",
    "cold": "cold_start",
    "cpu": "cpu_peers",
}
ON_THE_GPU = "device_peers"


def _flags(command: Any) -> Any:
    for flag, script in reversed(SCRIPTS.items()):
        command = click.option(f"--{flag}", "asked", flag_value=script, help=f"{script}.py")(
            command
        )
    return command


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@_flags
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def main(ctx: click.Context, asked: str | None, rest: tuple[str, ...]) -> None:
    """Run the comparison that is asked for with the options that are left, of its script."""
    script = asked or ON_THE_GPU
    if asked is None and "--help" in rest:
        click.echo(ctx.get_help())
        return
    importlib.import_module(script).main(list(rest), prog_name=f"{script}.py")


if __name__ == "__main__":
    main()
