"""`lenetgpu classify`: label many files in shards, resume after any interruption, and summarise."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.folders import is_pattern, looks_at
from lenetgpu.files.forms import FORMS
from lenetgpu.files.kinds import require_pictures
from lenetgpu.files.orientation import BLACK
from lenetgpu.files.source import open_source
from lenetgpu.files.weights import load_weights
from lenetgpu.jobs import manifest
from lenetgpu.jobs.crew import SHARE, TRIES, Here, OnDask, crew, paying
from lenetgpu.jobs.inputs import Gathered, gather
from lenetgpu.jobs.job import MOST, PICTURES, SHARD, Job, require_same
from lenetgpu.jobs.manifest import ClassifyOutcome, Row, altered, clear, new_inputs
from lenetgpu.jobs.pictures import LIST, require_same_list, store_list
from lenetgpu.lab.console import Say
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import clock
from lenetgpu.plan import AUTO, may_settle
from lenetgpu.store import json_text, resolved, sweep, write_atomically

SUMMARY = "summary.json"
_FILES = (manifest.MANIFEST, SUMMARY, LIST)  # of a job, besides its files of labels
_MOST_WORKERS, _MOST_LINES, _PROBED_PARTS = 1024, 10, 1_000
_LABELS = "files of labels that are not as they were listed"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class ClassifyRequest:
    """The options of `lenetgpu classify`."""

    sources: tuple[Path, ...]
    out: Path
    weights: Path | None = None
    plan: str = AUTO
    precision: str | None = None
    device: str = "auto"
    threads: int | None = None
    shard: int | None = None  # None: SHARD images, or PICTURES pictures
    form: str = "npy"  # extension of the label files
    scores: bool = False
    tries: int = TRIES
    workers: str | None = None  # None: this process; "N": Dask processes; "cuda": one per GPU
    scheduler: str | None = None  # address of a running Dask cluster
    as_is: bool = False
    polarity: str = "auto"
    transpose: bool = False
    quiet: bool = False  # say nothing but answers and errors

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
        names = "plan", "precision", "device", "threads", "scores", "polarity", "transpose"
        return Request(None, weights, **{name: getattr(self, name) for name in names})


def classify(request: ClassifyRequest, say: Say, tell: Tell) -> ClassifyOutcome:
    """Run the shards that the manifest does not list yet; `say` gets progress, `tell` events.

    Raises LenetError for bad input (before anything is written), if the folder holds another job,
    or if the job cannot continue. Finished shards stay, and the same command resumes the job.
    """
    request.check()
    out, note = request.out.absolute(), (lambda text: None) if request.quiet else tell
    _require_folder(out, request.sources, request.form)
    read = _look(request, say)
    with manifest.alone(out):
        begun = manifest.read(out)
        run = request.run()
        if begun is not None and run.plan == AUTO:  # the plan chosen at the start
            run = replace(run, plan=begun.job.plan)
            if run.precision is None or run.plan in may_settle(begun.job.device, run.precision):
                run = replace(run, precision=begun.job.precision)
        local, images = request.workers, sum(entry.images for entry in read.inputs)
        if not read.listed:
            local = paying(run, local, images)
        if local != request.workers:
            note(f"workers {local or 'none'}: each needs {SHARE:,} of the {images:,} images to pay")
        with crew(run, local, request.scheduler, request.tries) as workers:
            if not read.listed and begun is None:
                # a damaged file is set aside later
                with suppress(LenetError), open_source(Path(read.inputs[0].path)) as source:
                    _tell_some(run.orientation.notes(run.orientation.source(source)), note, "notes")
            unreadable = [entry.sentence for entry in read.bad]
            _tell_some(unreadable, tell, "files that cannot be read")
            if workers.dashboard:
                note(f"dashboard {workers.dashboard}")
            say("making ready")
            job, machine = _job_of(request, run, read, workers)
            if begun is None:
                manifest.begin(out, job, read.listed)
                begun = manifest.Manifest(job)
            else:
                _resume(out, begun, job, read.listed, tell)
            new = [entry for entry in read.bad if entry.path not in begun.unreadable]
            if new and not job.pictures:
                manifest.append(out, begun.job, *new)
            outcome = ClassifyOutcome(begun.job, out, read.bad, dict(begun.done), machine=machine)
            _run(workers, outcome, manifest.left(out, begun), request.tries, say, tell)
            _look_again(outcome, say, tell)
    if (out / manifest.MANIFEST).exists():  # not removed meanwhile: a summary alone is no job
        sweep(out)
        text = json_text(outcome.document(), indent=1) + "\n"
        write_atomically(out / SUMMARY, text.encode())
    return outcome


def _look(request: ClassifyRequest, say: Say) -> Gathered:
    """Return the job's inputs; raise LenetError if they are unusable or are arrays with --as-is."""
    gathered = gather(request.sources, lambda done, of: say("looking at files", done, of))
    if not gathered.listed:
        require_pictures(request.as_is, f"images in {gathered.inputs[0].path}")
    return gathered


def _tell_some(sentences: list[str], tell: Tell, noun: str) -> None:
    for sentence in sentences[:_MOST_LINES]:
        tell(sentence)
    if len(sentences) > _MOST_LINES:
        tell(f"and {len(sentences) - _MOST_LINES:,} more {noun}")


def _resume(out: Path, begun: manifest.Manifest, job: Job, listed: bytes, tell: Tell) -> None:
    """Add inputs that have become readable, and schedule altered label files again."""
    require_same(out, begun.job, job)
    if listed and begun.job.pictures:
        if begun.done:
            require_same_list(out, begun.job.valid[0].fingerprint, listed)
        store_list(out, listed)
    for entry in new_inputs(out, begun, job):
        manifest.append(out, begun.job, entry)
        begun.job = begun.job.extended(entry)
    damaged = altered(out, begun.done.values())
    for row, _ in damaged:
        begun.drop(row)
    _tell_some([f"{why}; they are made again" for _, why in damaged], tell, _LABELS)
    clear(out, begun.job, begun.done.values())


def _look_again(outcome: ClassifyOutcome, say: Say, tell: Tell) -> None:
    """Check that the folder holds the listed label files and no others, unless interrupted."""
    if outcome.interrupted or not outcome.fresh:
        return
    say("looking at labels")
    try:
        manifest.require_begun(outcome.folder, outcome.job)
        clear(outcome.folder, outcome.job, outcome.rows.values())
        damaged = altered(outcome.folder, outcome.rows.values())
    except KeyboardInterrupt:
        outcome.interrupted = True
        return
    for row, why in damaged:
        del outcome.rows[row.shard]
        outcome.altered.append(why)
    again = [f"{why}; the same command makes them again" for why in outcome.altered]
    _tell_some(again, tell, _LABELS)


def _job_of(
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
        inverted=request.polarity == BLACK,
        transposed=request.transpose,
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
    if file is not None and str(file) != "-" and resolved(file).is_relative_to(resolved(out)):
        raise LenetError(
            f"{file}: expected a file outside {out}, which is reserved for the job, found it inside"
        )


def _require_folder(out: Path, sources: tuple[Path, ...], form: str) -> None:
    """Raise LenetError if `out` is a file, has other files, or is read as one of the sources."""
    written = [f"part-{number:06}.{form}" for number in range(_PROBED_PARTS)]
    for source in sources:
        for name in (*written, *_FILES) if is_pattern(str(source)) else ():
            if looks_at(str(source), os.path.join(os.path.realpath(out), name)):
                raise LenetError(
                    f"{out}: expected an output folder with no files that {source} matches, "
                    f"found a match for {name}"
                )
        if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
            raise LenetError(
                f"{out}: expected an output folder outside the input folder {source}, "
                "found it inside"
            )
    if not out.exists():
        return
    if not out.is_dir():
        raise LenetError(f"{out}: expected a folder for the results, found a file")
    try:
        entries = list(out.iterdir())
    except OSError as error:
        raise LenetError(f"{out}: expected a folder to read, found: {error.strerror}") from error
    for entry in entries:
        of_job = entry.name.startswith("part-") or entry.name in _FILES
        if of_job and entry.exists() and not entry.is_file():
            raise LenetError(
                f"{entry}: expected a file of the job's, found a folder, a pipe or a device"
            )
    names = [entry.name for entry in entries]
    others = [name for name in names if not name.startswith(".") and name != LIST]
    if others and manifest.MANIFEST not in others:
        raise LenetError(
            f"{out}: expected an empty folder or the folder of an earlier job, "
            f"found other files ({len(others)}), such as {min(others)}"
        )


def _run(
    crew: Here | OnDask, outcome: ClassifyOutcome, left: list[int], tries: int, say: Say, tell: Tell
) -> None:
    job = outcome.job
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
        for result in rows(left, tries) if rows is not None else ():
            if isinstance(result, Row):
                count(result)
            else:
                manifest.append(outcome.folder, job, result)
                outcome.failed[result.shard] = result
                tell(f"set aside after {result.tries} tries: {result.sentence}")
            say("pictures" if job.pictures else "images", images + outcome.fresh_images, job.images)
            outcome.seconds = clock() - started
    except KeyboardInterrupt:
        outcome.interrupted = True
        for row in manifest.complete(outcome.folder):  # finished but not reported yet
            if row.shard not in outcome.rows:
                count(row)
        if outcome.fresh:
            outcome.seconds = clock() - started


def lines(outcome: ClassifyOutcome, quiet: bool = False) -> list[str]:
    """Return lines on the results and, unless `quiet`, on the inputs and the speed of this run."""
    job = outcome.job
    right, labelled = outcome.right
    word = "pictures" if job.pictures else "images"
    files = "" if job.pictures else f" in {len(job.valid):,} file{'s' * (len(job.valid) != 1)}"
    text = [
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
        text.append(f"no label {outcome.without_label:,} of them{more}")
        text += [f"  {sentence}" for sentence in outcome.reasons]
    if labelled:
        text.append(f"accuracy {right:,}/{labelled:,} = {right / labelled:.2%}")
    if quiet:
        return [line for line in text if not line.startswith(("data ", "weights ", "plan "))]
    if outcome.fresh:
        rate = outcome.fresh_images / outcome.seconds
        text.append(
            f"elapsed  {outcome.seconds:,.2f} s for {outcome.fresh_images:,} {word} of this run, "
            f"{rate:,.0f} {word}/s"
        )
    return text
