"""Formatting of `--help`: arguments, options under headings, examples; command suggestions."""

from collections.abc import Iterable, Sequence
from typing import Any

import click

# heading to the parameter names of its options
HEADINGS = {
    "Data": "data weights batch limit skip as_is mirror shard",
    "What runs": "plan conv1 pool1 conv2 pool2 fc1 fc2 argmax precision device threads streams "
    "chunk transfers suite lines model epilogue bias relu dtype listed only with_files baseline "
    "explain machine tune engines shares workers scheduler predict",
    "Time and checks": "repeat timing seconds rounds warmup watch cold_l2 bitwise counters "
    "min_accuracy regression against tries",
    "Output": "output scores errors json_file csv_file markdown plot trace as_json no_progress "
    "out form",
}
OTHER, ALL = "Other", "Options"
_FEW = 6  # commands with at most this many options have no headings
# command to lines that show its use
EXAMPLES: dict[str, tuple[str, ...]] = {
    "infer": ("7.png scans/ --output labels.csv", "--conv2 fft --timing --limit 1000"),
    "profile": ("--plan fp32 --trace trace.json",),
    "classify": ("scans/ 'more/*.h5' --out labels", "scans/ --out labels --workers cuda"),
    "report": ("out.html", "out.html docs/measured/nvidia-h200"),
    "compare": ("conv2 --batch 1000", "plans --only fp16,int8", "pool1 --with mine.py"),
    "conv": ("64,56,56,128,3,1,1 --batch 64", "--suite resnet50 --json results.json"),
    "variants": ("conv2", "--new conv mine/"),
    "doctor": ("", "--repair"),
    "warmup": ("--device cuda:0",),
    "completion": ("bash",),
    "data info": ("digits.h5",),
    "data verify": ("digits.h5",),
    "data convert": ("t10k-images-idx3-ubyte.gz digits.h5",),
    "data fetch-mnist": ("mnist/",),
    "weights info": ("lenet.h5",),
    "weights verify": ("lenet.safetensors",),
    "weights convert": ("lenet.h5 lenet.onnx",),
}
SETTINGS = {
    "help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True,
}  # fmt: skip


class Argument(click.Argument):
    """A positional argument with a description."""

    def __init__(self, declared: Sequence[str], *, explained: str, **how: Any) -> None:
        super().__init__(declared, **how)
        self.explained = explained


def grouped(options: Iterable[click.Option]) -> dict[str, list[click.Option]]:
    """Group options by heading, in command order; few options have a single heading."""
    options = list(options)
    heading_of = {name: heading for heading, names in HEADINGS.items() for name in names.split()}
    groups: dict[str, list[click.Option]] = {heading: [] for heading in (*HEADINGS, OTHER)}
    for option in options:
        groups[heading_of.get(str(option.name), OTHER)].append(option)
    if len(options) - len(groups[OTHER]) <= _FEW:
        return {ALL: options}
    return {heading: members for heading, members in groups.items() if members}


def _write(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    params = command.get_params(ctx)
    arguments = [param for param in params if isinstance(param, Argument)]
    if arguments:
        with formatter.section("Arguments"):
            formatter.write_dl([(a.make_metavar(ctx), a.explained) for a in arguments])
    options = grouped(param for param in params if isinstance(param, click.Option))
    for heading, members in options.items():
        with formatter.section(heading):
            formatter.write_dl(
                [row for option in members if (row := option.get_help_record(ctx)) is not None]
            )
    words = ctx.command_path.split()[-2:]
    name = next((name for name in (" ".join(words), words[-1]) if name in EXAMPLES), "")
    if name:
        with formatter.section("Examples"):
            for line in EXAMPLES[name]:
                formatter.write_text(f"lenetgpu {name} {line}".rstrip())


class Command(click.Command):
    """A command whose help has arguments, grouped options and examples."""

    format_options = _write


class Commands(click.Group):
    """A group of such commands; summaries are not shortened."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options and commands."""
        _write(self, ctx, formatter)
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl([(n, self.commands[n].get_short_help_str(200)) for n in names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command in `args`; the usage error suggests similar names."""
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from lenetgpu.errors import choose

            raise click.UsageError(
                f"command {args[0]!r} does not exist; {choose(args[0], self.list_commands(ctx))}"
            )
        return super().resolve_command(ctx, args)
