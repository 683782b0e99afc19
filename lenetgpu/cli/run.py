"""The commands that classify or time: infer, profile, classify, report, compare and conv."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from lenetgpu.cli.ending import (
    console,
    end,
    is_stdout,
    phases_before,
    say,
    write_json,
    write_text,
)  # fmt: skip
from lenetgpu.cli.help import Command
from lenetgpu.cli.options import COMBINED, declared, overrides, request
from lenetgpu.cli.signals import INTERRUPTED

if TYPE_CHECKING:
    from lenetgpu.lab.console import Console
    from lenetgpu.lab.pictures import Classified
    from lenetgpu.lab.tables import Part
    from lenetgpu.measure.outcome import Outcome, Progress, Request
    from lenetgpu.pictures.given import Expanded, Gathered


def _given(arguments: Sequence[str], as_is: bool) -> tuple[Path | None, Expanded | None]:
    """Return one file to read in parts (None: the default), or the files of pictures, not read yet.

    Raises LenetError if stdin is given twice, or for `as_is` with a file that is read in parts.
    """
    from lenetgpu.files.kinds import require_pictures

    if not arguments:
        require_pictures(as_is, "the digits that ship")
        return None, None
    from lenetgpu.pictures.given import expand, single_data

    expanded = expand(arguments)
    if not expanded.bad and single_data(expanded.paths):
        require_pictures(as_is, f"images in {expanded.paths[0]}")
        return Path(expanded.paths[0]), None
    return None, expanded


def _gathered(request: Request, expanded: Expanded, as_is: bool, progress: bool) -> Gathered:
    """Read and prepare the pictures; print a line for each bad one if there are others."""
    from lenetgpu.lab.console import progress_bar
    from lenetgpu.lab.pictures import gathered

    with progress_bar(progress, "pictures read") as advance:
        found = gathered(request, expanded, as_is, advance)
    if found.names or len(found.bad) > 1:
        for sentence in found.bad:
            say(f"lenetgpu: {sentence}", err=True)
    return found


def _classified(
    request: Request, found: Gathered | None, progress: Progress, output: Path | None
) -> tuple[Outcome, Classified | None]:
    """Label the pictures `found`, or the request's file, and write the labels to `output`."""
    from lenetgpu.lab.infer import infer
    from lenetgpu.lab.pictures import Classified, classify

    if found is None:
        outcome = infer(request, progress, output)
        return outcome, Classified.of_file(outcome)
    classified = classify(request, found, progress, output)
    return classified.outcome, classified


def _print(
    out: Console, outcome: Outcome, classified: Classified | None, notes: Iterable[str], quiet: bool
) -> None:
    """Print the answers, and unless `quiet` the notes and, if it is of interest, the report."""
    from lenetgpu.lab import pictures, summary

    parts: Iterable[Part] = ()
    if classified is not None:
        rows = classified.rows()
        drawn = partial(pictures.parts, rows, classified.images, out.width)
        parts = pictures.answers(rows) if quiet else drawn()
    elif outcome.truth is None:
        parts = [pictures.counts(outcome.labels.tolist())]
    if parts:
        from lenetgpu.lab.tables import show

        show(out, parts)
    timed = outcome.request.timing or outcome.request.repeat
    brief = classified is not None and outcome.truth is None and not timed
    if quiet:
        if outcome.truth is not None:
            summary.print_accuracy(out, outcome)
        return
    for note in (*notes, *(outcome.notes if brief else ())):
        out.print(f"note     {note}")
    if not brief:
        if classified is not None:
            out.print("")
        summary.print_infer(out, outcome)


@click.command(cls=Command)
@declared("infer")
@click.pass_context
def infer(
    ctx: click.Context, /, data: tuple[str, ...], as_is: bool, quiet: bool, **options: Any
) -> None:
    """Classify images and print accuracy and time."""
    from lenetgpu.files import output as files
    from lenetgpu.lab.console import progress_bar
    from lenetgpu.lab.mistakes import check_errors, write_errors
    from lenetgpu.lab.summary import print_scores
    from lenetgpu.measure.document import infer_json
    from lenetgpu.measure.outcome import Request

    output, errors, json_file = (options[name] for name in ("output", "errors", "json_file"))
    if output is not None:
        files.check_target(output)
    if errors is not None:
        check_errors(errors)
    file, expanded = _given(data, as_is)
    read = [file] if expanded is None else map(Path, expanded.paths)
    files.require_targets(output, json_file, errors, sources=(*read, options["weights"]))
    if options["weights"] is None:  # they are HDF5: NumPy and h5py, while the driver starts
        from lenetgpu.files import checksums  # noqa: F401
    before = phases_before()
    requested = request(
        Request, options, overrides=overrides(options), data=file,
        roofline=options["timing"], mistakes=errors is not None, each=True,
    )  # fmt: skip
    gathered, shown = None, not (quiet or options["no_progress"])
    if expanded is not None:
        gathered = _gathered(requested, expanded, as_is, shown)
    with progress_bar(enabled=shown) as progress:
        outcome, classified = _classified(requested, gathered, progress, output)
    for name, ms in before.items():
        outcome.phases[name] = ms + outcome.phases.get(name, 0.0)
    if json_file is not None:
        rows = {} if classified is None else classified.as_json()
        write_json(json_file, infer_json(outcome) | outcome.ended() | rows)
    if errors is not None:
        write_errors(errors, outcome)
    out = console(stderr=is_stdout(json_file))
    _print(out, outcome, classified, () if expanded is None else expanded.notes, quiet)
    if options["scores"] and output is None:
        print_scores(out, outcome)
    if outcome.interrupted:
        note = f"; {output} holds their labels only" if output is not None else ""
        say(outcome.sentence() + note, err=True)
        ctx.exit(INTERRUPTED)
    if outcome.too_low:
        found = f"{outcome.correct:,} of {outcome.done:,} correct"
        expected = f"a share of at least {requested.min_accuracy:g}"
        say(f"WRONG: --min-accuracy: expected {expected}, found {found}", err=True)
    ctx.exit(1 if outcome.too_low or (gathered is not None and gathered.bad) else 0)


@click.command(cls=Command)
@declared("profile")
@click.pass_context
def profile(ctx: click.Context, /, counters: bool, no_progress: bool, **options: Any) -> None:
    """Time each stage of a plan; show rates, roofline, launches and occupancy."""
    from lenetgpu.files import output as files
    from lenetgpu.lab import profile as job
    from lenetgpu.lab.console import progress_bar
    from lenetgpu.lab.tables import show
    from lenetgpu.measure.outcome import Request

    names = ("json_file", "csv_file", "markdown", "trace")
    json_file, csv_file, markdown, trace = targets = [options[name] for name in names]
    files.require_targets(*targets, sources=(options["data"], options["weights"]))
    more = {"overrides": overrides(options), "trace": trace is not None}
    requested = request(Request, options, timing=True, roofline=True, **more)
    with progress_bar(enabled=not no_progress) as progress:
        result = job.profile(requested, progress, counters)
    if json_file is not None:
        write_json(json_file, result.document())
    note = ""
    for target, text, has_results in (
        (csv_file, result.table().csv, bool(result.rows)),
        (markdown, result.table().markdown, bool(result.rows)),
        (trace, result.as_trace, bool(result.outcome.trace)),
    ):
        if target is not None and has_results:
            write_text(target, text())
        elif target is not None:
            note += f"; {target} is not written, there is nothing for it"
    show(console(stderr=is_stdout(*targets)), result.parts())
    if result.outcome.interrupted:
        say(result.outcome.sentence() + result.passes() + note, err=True)
        ctx.exit(INTERRUPTED)


@click.command(cls=Command)
@declared("classify")
@click.pass_context
def classify(ctx: click.Context, /, json_file: Path | None, **options: Any) -> None:
    """Classify many files in shards; the same command resumes an interrupted run.

    Label files and a manifest of the completed shards are written to the folder of --out.
    """
    from lenetgpu.files.output import require_targets
    from lenetgpu.lab.classify import ClassifyRequest, lines, require_outside
    from lenetgpu.lab.classify import classify as job
    from lenetgpu.lab.console import status_line

    require_targets(json_file, sources=(*options["sources"], options["weights"]))
    require_outside(options["out"], json_file)
    requested, err = request(ClassifyRequest, options), is_stdout(json_file)
    silent = options["no_progress"] or requested.quiet
    with status_line(enabled=not silent, rate=True) as status:
        outcome = job(requested, status, partial(say, err=True))
    if json_file is not None:
        write_json(json_file, outcome.document())
    for line in lines(outcome, requested.quiet):
        say(line, err=err)
    if outcome.interrupted:
        left = f"{outcome.left:,} shards left; the same command goes on"
        say(f"lenetgpu: interrupted: {left}", err=True)
        ctx.exit(INTERRUPTED)
    if outcome.bad or outcome.failed or outcome.without_label or outcome.altered:
        ctx.exit(1)


@click.command(cls=Command)
@declared("report")
@click.pass_context
def report(ctx: click.Context, /, out: Path, no_progress: bool, **options: Any) -> None:
    """Show results on one HTML page, from a new run or from JSON files of earlier runs.

    The page is a single, self-contained file.
    """
    from lenetgpu.lab.console import status_line
    from lenetgpu.lab.report import ReportRequest, run_report

    given = tuple(
        name
        for name in options
        if name != "files" and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )
    requested = request(ReportRequest, options, out=out, given=given)
    with status_line(enabled=not no_progress) as status:
        page = run_report(requested, status)
    for sentence in page.sentences():
        say(sentence, err=True)
    files = f" from {page.files:,} file{'s' * (page.files != 1)}" if requested.files else ""
    say(f"{out}: {page.size / 1e6:.1f} MB{files}")
    ctx.exit(1 if page.wrong else 0)


@click.command(cls=Command)
@declared("compare")
@click.pass_context
def compare(ctx: click.Context, /, no_progress: bool, **options: Any) -> None:
    """Check and time the variants of a stage, all plans, or a suite."""
    from lenetgpu.lab import compare as results
    from lenetgpu.lab.console import status_line

    targets = _targets(options)
    requested = request(results.CompareRequest, options, plugins=options["with_files"])
    with status_line(enabled=not no_progress) as say:
        outcome = results.run_compare(requested, say)
    _show(targets, results, outcome.document)
    end(ctx, outcome)


def _targets(options: dict[str, Any]) -> tuple[Path | None, Path | None, Path | None]:
    """Return the JSON, CSV and Markdown targets; LenetError for unwritable ones and inputs."""
    from lenetgpu.files.output import require_targets

    targets = options["json_file"], options["csv_file"], options["markdown"]
    given = [options.get(name) for name in ("data", "weights", "lines", "model")]
    read = *given, options["against"], *options["with_files"]
    require_targets(*targets, options["plot"], sources=read)
    return targets


def _show(targets: tuple[Path | None, ...], results: Any, document: Any) -> None:
    """Write a document as JSON, CSV and Markdown, and print it; `results` is its module."""
    from lenetgpu.lab.tables import show

    json_file, csv_file, markdown = targets
    if json_file is not None:
        write_json(json_file, document)
    table = results.table(document)
    for target, text in ((csv_file, table.csv), (markdown, table.markdown)):
        if target is not None:
            write_text(target, text())
    show(console(is_stdout(*targets)), results.parts(document))


def _require_combinable(ctx: click.Context, flag: str) -> None:
    """Raise LenetError if a parameter is given that cannot be combined with `flag`."""
    from lenetgpu.errors import LenetError

    allowed = {flag, *COMBINED[flag].split()}
    names = {str(param.name): param.opts[0] for param in ctx.command.params} | {"shape": "SHAPE"}
    for name, shown in names.items():
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in allowed:
            *others, last = (names[other] for other in names if other in allowed - {flag})
            only = f"combine it only with {', '.join(others)} or {last}"
            raise LenetError(f"{names[flag]}: cannot be combined with {shown}; {only}")


# The first option of a line of benchdnn's, or the whole line as one word.
_PASTED = re.compile(r"--|--(de)?conv|--?[a-z]\S*\s(.*\s)?_*(g|mb|[iok][cdhw])\d+_*[a-z]+\d\S*")


class _Conv(Command):
    """A command that also accepts benchdnn's options as SHAPE, quoted or word by word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move a line of benchdnn's that begins with options behind a `--`."""
        first = next((at for at, arg in enumerate(args) if _PASTED.fullmatch(arg)), len(args))
        if args[first:] and args[first] != "--":
            after = (at for at in range(first, len(args)) if not re.fullmatch(r"-\S*", args[at]))
            end = next(after, len(args)) + 1
            first -= first > 0 and args[first - 1].endswith(("benchdnn", "benchdnn.exe"))
            args = [*args[:first], *args[end:], "--", " ".join(args[first:end])]
        return super().parse_args(ctx, args)


@click.command(cls=_Conv)
@declared("conv")
@click.pass_context
def conv(ctx: click.Context, /, no_progress: bool, **options: Any) -> None:
    """Check and time every convolution algorithm on a shape or a suite of shapes."""
    from lenetgpu.lab.console import status_line
    from lenetgpu.lab.conv import compared, document, engines, shares
    from lenetgpu.lab.conv.request import ConvRequest, run_list

    if flag := next((flag for flag in COMBINED if options[flag]), None):
        _require_combinable(ctx, flag)
    targets = _targets(options)
    requested = request(ConvRequest, options, plugins=options["with_files"])
    if flag == "listed":
        _show(targets, document, run_list(requested))
        return
    runs: dict[str | None, Any] = {
        "engines": (engines, engines.run_engines),
        "shares": (shares, shares.run_shares),
    }
    results, run = runs.get(flag, (document, compared.run_conv))
    with status_line(enabled=not no_progress) as say:
        outcome = run(requested, say)
    _show(targets, results, outcome.document)
    end(ctx, outcome)
