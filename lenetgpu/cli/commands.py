"""`lenetgpu`: the group, with every command in it."""

from __future__ import annotations

import click

from lenetgpu import __version__
from lenetgpu.cli import files, laboratory, machine, report, run
from lenetgpu.cli.classify import classify
from lenetgpu.cli.group import Group


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Classify handwritten digits with LeNet, every stage switchable, on a GPU or a CPU."""


for _command in (
    run.infer,
    run.profile,
    classify,
    laboratory.compare,
    laboratory.conv,
    report.report,
    machine.variants,
    machine.doctor,
    machine.warmup,
    machine.completion,
    files.data,
    files.weights,
):
    main.add_command(_command)
