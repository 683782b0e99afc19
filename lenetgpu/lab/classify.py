"""`lenetgpu classify`: label many files in shards, resume after any interruption, and summarise."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.folders import is_pattern, looks_at
from lenetgpu.files.forms import FORMS
from lenetgpu.files.kinds import require_pictures
from lenetgpu.files.weights import load_weights
from lenetgpu.jobs import manifest
from lenetgpu.jobs.costs import Predicted
from lenetgpu.jobs.crew import TRIES, Here, OnDask, crew
from lenetgpu.jobs.inputs import Gathered, gather
from lenetgpu.jobs.job import MOST, PICTURES, SHARD, Job, require_same
from lenetgpu.jobs.manifest import ClassifyOutcome, Row, altered, clear, new_inputs
from lenetgpu.jobs.pictures import LIST, require_same_list, store_list
from lenetgpu.lab.console import Say
from lenetgpu.lab.render import Part, Table
from lenetgpu.lab.rows import Column, columns, fixed
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import clock
from lenetgpu.plan import AUTO
from lenetgpu.store import json_text, resolved, sweep, write_atomically

SUMMARY = "summary.json"
_MOST_WORKERS, _TOLD, _LOOKED_FOR = 1024, 10, 1_000
_LABELS = "files of labels that are not as they were listed"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class ClassifyRequest:
    """The options of `lenetgpu classify`.

    `shard` is the number of images per shard; None means SHARD, or PICTURES for pictures.
    `form` is the extension of the label files. `as_is` leaves pictures unprepared. `workers` is
    None for this process, "N" for N Dask processes, or "cuda" for one per GPU; `scheduler` is
    the address of a running Dask cluster instead.
    """

    sources: tuple[Path, ...]
    out: Path
    weights: Path | None = None
    plan: str = AUTO
    precision: str | None = None
    device: str = "auto"
    threads: int | None = None
    shard: int | None = None
    form: str = "npy"
    scores: bool = False
    tries: int = TRIES
    workers: str | None = None
    scheduler: str | None = None
    as_is: bool = False

    def check(self) -> None:
        """Raise LenetError if an option has an invalid value."""
        for option, number in {"--shard": self.shard, "--tries": self.tries}.items():
            if number is not None and not 1 <= number < 1 << 53:
                raise LenetError(f"{option}: expected at least 1 and below 2^53, found {number}")
        if f".{self.form}" not in FORMS:
            known = ", ".join(form[1:] for form in FORMS)
            raise LenetError(f"--form: expected one of {known}, found {self.form!r}")
        if self.workers is not None and self.scheduler is not None:
            raise LenetError("classify: expected one of --workers and --scheduler, found both")
        if self.workers not in (None, "cuda", *map(str, range(1, _MOST_WORKERS + 1))):
            raise LenetError(
                f"--workers: expected cuda or 1 to {_MOST_WORKERS}, found {self.workers!r}"
            )
        self.run().check()

    def run(self) -> Request:
        """Return the inference request that each worker runs."""
        weights = Path(self.weights or assets.default_weights()).absolute()
        return Request(
            None,
            weights,
            plan=self.plan,
            precision=self.precision,
            device=self.device,
            threads=self.threads,
            scores=self.scores,
        )


def classify(request: ClassifyRequest, say: Say, tell: Tell) -> ClassifyOutcome:
    """Run the shards that the manifest does not list yet.

    `say` receives the progress, `tell` the events. Raises LenetError for bad input (before
    anything is written), if the folder holds another job, or if the job cannot continue.
    Finished shards stay, and the same command resumes the job.
    """
    request.check()
    out = request.out.absolute()
    _require_folder(out, request.sources, request.form)
    read = look(request, say)
    with manifest.alone(out):
        begun = manifest.read(out)
        run = request.run()
        if begun is not None and run.plan == AUTO:  # the plan chosen at the start
            run = replace(run, plan=begun.job.plan, precision=run.precision or begun.job.precision)
        with crew(run, request.workers, request.scheduler, request.tries) as found:
            unreadable = [entry.sentence for entry in read.bad]
            _tell_some(unreadable, tell, "files that cannot be read")
            if found.dashboard:
                tell(f"dashboard {found.dashboard}")
            say("making ready")
            job, machine = job_of(request, run, read, found)
            if begun is None:
                manifest.begin(out, job, read.listed)
                begun = manifest.Manifest(job)
            else:
                require_same(out, begun.job, job)
                _extend(out, begun, job, read.listed)
                _require_whole(out, begun, tell)
            new = [entry for entry in read.bad if entry.path not in begun.unreadable]
            if new and not job.pictures:
                manifest.append(out, begun.job, *new)
            outcome = ClassifyOutcome(begun.job, out, read.bad, dict(begun.done), machine=machine)
            _run(found, outcome, manifest.left(out, begun), request.tries, (say, tell))
            _look_again(outcome, (say, tell))
    _sum_up(out, outcome)
    return outcome


def look(request: ClassifyRequest, say: Say) -> Gathered:
    """Return the job's inputs; raise LenetError if they are unusable or are arrays with --as-is."""
    found = gather(request.sources, lambda done, of: say("looking at files", done, of))
    if not found.listed:
        require_pictures(request.as_is, f"images in {found.inputs[0].path}")
    return found


def _tell_some(sentences: list[str], tell: Tell, what: str) -> None:
    """Report the first few sentences, and the number of further `what`."""
    for sentence in sentences[:_TOLD]:
        tell(sentence)
    if len(sentences) > _TOLD:
        tell(f"and {len(sentences) - _TOLD:,} more {what}")


def _extend(out: Path, begun: manifest.Manifest, job: Job, listed: bytes) -> None:
    """Add input files that have become readable; raise LenetError if the job differs.

    The pictures may change until the first one is labelled.
    """
    if listed and begun.job.pictures:
        if begun.done:
            require_same_list(out, begun.job.valid[0].fingerprint, listed)
        store_list(out, listed)
    for entry in new_inputs(out, begun, job):
        manifest.append(out, begun.job, entry)
        begun.job = begun.job.extended(entry)


def _require_whole(out: Path, begun: manifest.Manifest, tell: Tell) -> None:
    """Schedule altered label files to be made again, and delete leftovers."""
    found = altered(out, begun.done.values())
    for row, _ in found:
        begun.drop(row)
    _tell_some([f"{why}; they are made again" for _, why in found], tell, _LABELS)
    clear(out, begun.job, begun.done.values())


def _look_again(outcome: ClassifyOutcome, callbacks: tuple[Say, Tell]) -> None:
    """Check at the end that the folder holds the listed label files and no others.

    An interrupted run skips the check.
    """
    if outcome.interrupted or not outcome.fresh:
        return
    say, tell = callbacks
    say("looking at labels")
    try:
        manifest.require_begun(outcome.folder, outcome.job)
        clear(outcome.folder, outcome.job, outcome.rows.values())
        found = altered(outcome.folder, outcome.rows.values())
    except KeyboardInterrupt:
        outcome.interrupted = True
        return
    for row, why in found:
        del outcome.rows[row.shard]
        outcome.altered.append(why)
    again = [f"{why}; the same command makes them again" for why in outcome.altered]
    _tell_some(again, tell, _LABELS)


def job_of(
    request: ClassifyRequest, run: Request, read: Gathered, crew: Here | OnDask
) -> tuple[Job, dict[str, Any]]:
    """Return the job described by a request, and the device as JSON."""
    size = request.shard or (PICTURES if read.listed else SHARD)
    plan, precision, device, machine = crew.resolve(read.inputs[0].dtype, size)
    weights = load_weights(run.weights or assets.default_weights())
    job = Job(
        tuple(read.inputs),
        weights.source,
        weights.digest,
        plan,
        precision,
        device,
        size,
        f".{request.form}",
        request.scores,
        as_is=request.as_is,
        id=os.urandom(8).hex(),
    )
    count = job.count(job.inputs)
    if count > MOST:
        raise LenetError(
            f"--shard {size:,}: expected at most {MOST:,} shards, found {count:,} of "
            f"{job.images:,} images"
        )
    return job, machine


def require_outside(out: Path, file: Path | None) -> None:
    """Raise LenetError if the output `file` (None: none, -: stdout) lies in `out`."""
    if file is None or str(file) == "-":
        return
    if resolved(file).is_relative_to(resolved(out)):
        raise LenetError(
            f"{file}: expected a file outside {out}, which holds the job's own, found it inside"
        )


def _require_folder(out: Path, sources: tuple[Path, ...], form: str) -> None:
    """Raise LenetError if `out` is a file, has files but no manifest, or lies in a source."""
    for source in sources:
        if is_pattern(str(source)):
            _require_unseen(out, str(source), form)
        if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
            raise LenetError(
                f"{out}: expected a folder for the results outside {source}, which is read, "
                "found it inside"
            )
    if not out.exists():
        return
    if not out.is_dir():
        raise LenetError(f"{out}: expected a folder for the results, found a file")
    try:
        others = [name for name in _files(out) if not name.startswith(".") and name != LIST]
    except OSError as error:
        raise LenetError(f"{out}: expected a folder to read, found: {error.strerror}") from error
    if others and manifest.MANIFEST not in others:
        raise LenetError(
            f"{out}: expected an empty folder, or one that a job was begun in, "
            f"found {len(others)} other files, as {min(others)}"
        )


def _require_unseen(out: Path, pattern: str, form: str) -> None:
    """Raise LenetError if `pattern` matches a file that the job writes into `out`."""
    names = [f"part-{number:06}.{form}" for number in range(_LOOKED_FOR)]
    folder = os.path.realpath(out)
    for name in (*names, manifest.MANIFEST, SUMMARY, LIST):
        if looks_at(pattern, os.path.join(folder, name)):
            raise LenetError(
                f"{out}: expected a folder for the results that {pattern} matches nothing of, "
                f"found that it would match {name}"
            )


def _files(folder: Path) -> list[str]:
    """Return the names in `folder`; raise LenetError if a result's name is not that of a file."""
    with os.scandir(folder) as entries:
        found = [(e.name, not e.is_file() and Path(e).exists()) for e in entries]
    for name, odd in found:
        if odd and (name.startswith("part-") or name in (manifest.MANIFEST, SUMMARY, LIST)):
            raise LenetError(
                f"{folder / name}: expected a file of the job's, found a folder, a pipe or a device"
            )
    return [name for name, _ in found]


def _run(
    crew: Here | OnDask,
    outcome: ClassifyOutcome,
    left: list[int],
    tries: int,
    callbacks: tuple[Say, Tell],
) -> None:
    """Run the remaining shards and record them in `outcome`; Ctrl-C ends the run."""
    (say, tell), job = callbacks, outcome.job
    for number in left:
        outcome.rows.pop(number, None)
    images, started = outcome.images, clock()

    def count(row: Row) -> None:
        outcome.rows[row.shard] = row
        outcome.fresh += row.files
        outcome.fresh_images += row.images

    try:
        rows = crew.ready(outcome.folder, job) if left else None
        outcome.ready_seconds, started = clock() - started, clock()
        for found in rows(left, tries) if rows is not None else ():
            if isinstance(found, Row):
                count(found)
            else:
                manifest.append(outcome.folder, job, found)
                outcome.failed[found.shard] = found
                tell(f"set aside after {found.tries} tries: {found.sentence}")
            say("pictures" if job.pictures else "images", images + outcome.fresh_images, job.images)
            outcome.seconds = clock() - started
    except KeyboardInterrupt:
        outcome.interrupted = True
        for row in manifest.complete(outcome.folder):  # finished but not reported yet
            if row.shard not in outcome.rows:
                count(row)
        if outcome.fresh:
            outcome.seconds = clock() - started


def _sum_up(folder: Path, outcome: ClassifyOutcome) -> None:
    if not (folder / manifest.MANIFEST).exists():  # removed meanwhile: a summary alone is no job
        return
    sweep(folder)
    write_atomically(folder / SUMMARY, (json_text(outcome.document(), indent=1) + "\n").encode())


def foresee(request: ClassifyRequest, say: Say) -> Predicted:
    """Measure one worker's costs for a second or two; the folder stays unchanged."""
    request.check()
    read = look(request, say)
    run = request.run()
    folder = request.out.absolute()
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    with crew(run, request.workers, request.scheduler, request.tries) as found:
        say("making ready")
        job, machine = job_of(request, run, read, found)
        say("measuring a worker")
        with TemporaryDirectory(prefix=".lenetgpu-", dir=there) as scratch:
            store_list(Path(scratch), read.listed)
            return Predicted(job, found.costs(Path(scratch), job), machine)


def lines(outcome: ClassifyOutcome) -> list[str]:
    """Return lines on the inputs, the results and the speed of this run."""
    job = outcome.job
    right, labelled = outcome.right
    word = "pictures" if job.pictures else "images"
    files = "" if job.pictures else f" in {len(job.valid):,} file{'s' * (len(job.valid) != 1)}"
    found = [
        f"data     {job.images:,} {word}{files}, "
        f"{len(job.shards):,} shards of at most {job.size:,}",
        f"weights  {job.weights}",
        f"plan     {job.plan}, {job.precision}, on {outcome.machine.get('name', job.device)}",
        f"done     {outcome.images:,} {word}, {outcome.shards:,} shards in {outcome.folder}"
        + (f", {len(outcome.failed):,} set aside" if outcome.failed else "")
        + (f", {outcome.left:,} left" if outcome.left else ""),
        "digits   " + "  ".join(f"{k}: {count:,}" for k, count in enumerate(outcome.counts)),
    ]
    if outcome.without_label:
        more = ", as" if len(outcome.reasons) < outcome.without_label else ""
        found.append(f"no label {outcome.without_label:,} of them{more}")
        found += [f"  {sentence}" for sentence in outcome.reasons]
    if labelled:
        found.append(f"accuracy {right:,}/{labelled:,} = {right / labelled:.2%}")
    if outcome.fresh:
        rate = outcome.fresh_images / outcome.seconds
        found.append(
            f"elapsed  {outcome.seconds:,.2f} s for {outcome.fresh_images:,} {word} of this run, "
            f"{rate:,.0f} {word}/s"
        )
    return found


def predicted(foreseen: Predicted) -> list[Part]:
    """Return one worker's measured costs and the model's prediction for several workers."""
    job = foreseen.job
    every = columns(
        ("workers", str),
        ("images/s=rate", fixed(0)),
        Column("all of them, s", "seconds", fixed(1)),
        "bound by=bound",
    )
    rows = [asdict(row) for row in foreseen.rows()]
    title = f"{job.images:,} images in shards of {job.size:,}, predicted"
    return [*_measured(foreseen), Table(every, rows, title)]


def _measured(foreseen: Predicted) -> list[str]:
    job, costs = foreseen.job, foreseen.costs
    found = [
        f"a worker, plan {job.plan} on {foreseen.machine['name']}, measured here:",
        f"  ready in            {costs.start:,.2f} s",
        f"  one reader          {costs.read:,.0f} images/s; one per core {costs.read_all:,.0f}",
        f"  memory to labels    {costs.label:,.0f} images/s",
    ]
    if costs.bus is not None and costs.kernels is not None:
        found.append(
            f"  of that             bus {costs.bus:,.0f}, kernels {costs.kernels:,.0f} images/s"
        )
    if costs.there > 1:
        found.append(f"  {costs.there} workers at once   {costs.label_all:,.0f} images/s")
    found.append(
        f"  a shard             {costs.opening * 1e3:,.2f} ms to open; {costs.ending * 1e3:,.2f} "
        f"to write and list, {costs.line * 1e3:,.2f} of that for the manifest line"
    )
    task = f"{costs.task * 1e3:,.2f} ms a task" if costs.task else "none; --workers 1 measures one"
    return [*found, f"  a scheduler         {task}"]
