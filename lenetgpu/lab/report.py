"""`lenetgpu report`: a page of a fresh run on this machine, or of JSON files of earlier runs."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

from lenetgpu.dispatch.candidates import PLANS
from lenetgpu.errors import LenetError, require_extra, unexpected
from lenetgpu.files import assets
from lenetgpu.files.output import require_targets
from lenetgpu.files.source import open_source
from lenetgpu.lab.compare import CompareOutcome, CompareRequest, run_compare
from lenetgpu.lab.documents import TRACED, UNDRAWN, checked, read
from lenetgpu.lab.page.base import write_page
from lenetgpu.lab.page.blocks import Document
from lenetgpu.lab.page.mistakes import section
from lenetgpu.lab.page.report import page, tried
from lenetgpu.lab.profile import profile
from lenetgpu.measure.outcome import Outcome, Request
from lenetgpu.measure.rounds import UNCHECKED, Say
from lenetgpu.measure.timing import clock
from lenetgpu.plan import AUTO
from lenetgpu.store import json_text

MOST_FILES = 1_000
# Comparisons of a fresh run, in order, as far as its time allows
COMPARED = (PLANS, "conv2", "conv1", "fc1", "pool1", "pool2", "fc2", "argmax")
_NAMED = 3
_WATCH_S = 0.3
_MOST_IMAGES = {"cpu": 1_000, "cuda": 10_000}  # upper limit on the images of a comparison
_PER_SECOND = {"cpu": 200, "cuda": 10_000}  # images per second of a comparison's time
_LEAST_IMAGES = 32
_UNKNOWN = {"kind": "unknown", "name": "device not recorded", "cores": None}
_ABOUT = ("version", "commit", "driver", "kernels", "quick", "ceilings", "images", "data",
          "weights", "torch", "cudnn")  # fmt: skip


@dataclass(frozen=True)
class ReportRequest:
    """The options of `lenetgpu report`: a page at `out`, made from `files` or from a fresh run.

    A fresh run compares for `seconds`; `given` names its options present on the command line.
    """

    out: Path
    files: tuple[Path, ...] = ()
    plan: str = AUTO
    weights: Path | None = None
    data: Path | None = None
    device: str = "auto"
    limit: int | None = None
    seconds: float = 60.0
    given: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise LenetError unless the page can be made and written."""
        if self.out.suffix.lower() not in (".html", ".htm"):
            wanted = "a name ending in .html or .htm"
            raise unexpected(self.out, wanted, self.out.suffix or "no ending")
        if not 0 <= self.seconds < inf:
            raise LenetError(f"--seconds: expected a finite time from 0, found {self.seconds:g}")
        if self.files and self.given:
            both = f"--{self.given[0]} and files"
            raise LenetError(f"report: expected JSON files or a fresh run, found {both}")
        if self.limit is not None and self.limit < 1:
            raise LenetError(f"--limit: expected 1 or more images, found {self.limit}")
        require_extra("report", "vl_convert", "report")


@dataclass
class ReportOutcome:
    """The size of the page in bytes, the documents on it, and the candidates that were wrong."""

    size: int
    documents: list[Document]
    files: int = 0  # number of input files, including those with nothing to draw
    wrong: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def sentences(self) -> list[str]:
        """Return a line for the comparisons left out and one per wrong candidate."""
        names = ", ".join(self.left_out)
        late = [f"not compared for lack of time: {names}; a larger --seconds compares more"]
        return (late if names else []) + [f"WRONG: {name}" for name in self.wrong]


def run_report(request: ReportRequest, say: Say) -> ReportOutcome:
    """Make the page and write it atomically; LenetError for bad input, before anything runs."""
    request.check()
    files = json_files(request.files)
    require_targets(request.out, sources=(*files, request.data, request.weights))
    if not request.files:
        return _fresh(request, say)
    documents = [load_document(path) for path in files]
    drawn = [document for document in documents if document["command"] not in UNDRAWN]
    undrawn = [d["label"] for d in documents if d["command"] in UNDRAWN]
    if not drawn:
        raise LenetError(f"{files[0]}: expected JSON with figures to draw, found none")
    return ReportOutcome(write_page(request.out, page(drawn, undrawn)), drawn, files=len(documents))


def json_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files that `paths` name, without duplicates; a folder means its .json files."""
    seen: dict[Path, Path] = {}
    for path in paths:
        inside = sorted(islice(path.rglob("*.json"), MOST_FILES + 1)) if path.is_dir() else [path]
        if not inside:
            raise LenetError(f"{path}: expected a folder with JSON files, found none in it")
        for file in inside:
            seen.setdefault(file.absolute(), file)
    if len(seen) > MOST_FILES:
        raise LenetError(f"report: expected at most {MOST_FILES:,} files, found more")
    return list(seen.values())


def load_document(path: Path) -> Document:
    """Return a JSON file's document; raise LenetError if it is damaged or not lenetgpu's."""
    label = f"{path.absolute().parent.name}/{path.name}"

    def drawn(value: Any) -> Document:
        document = _labelled(checked(value), label, path.stem)
        try:
            if document["command"] not in UNDRAWN:
                tried(document)
        except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"{document['command']}: {error!r}") from error
        return document

    document: Document = read(path, "JSON written by a lenetgpu command", drawn)
    return document


def _labelled(document: Document, label: str, stem: str, fresh: bool = False) -> Document:
    """Return `document` with its name; a trace also gets the device and date recorded in it."""
    if document["command"] == TRACED:
        made = document["otherData"]["made"] or {}
        about = {"date": made.get("date"), "device": made.get("device") or _UNKNOWN}
        document |= {key: made.get(key) for key in _ABOUT} | about
    return document | {"label": label, "stem": stem, "fresh": fresh}


def _read_back(document: dict[str, Any], name: str) -> Document:
    """Return a document of this run in the form that reading it from a file gives."""
    return _labelled(checked(json.loads(json_text(document))), name, name, fresh=True)


def _fresh(request: ReportRequest, say: Say) -> ReportOutcome:
    with open_source(request.data or assets.default_digits(), 0, request.limit) as source:
        labelled = source.labels is not None
    asked = Request(
        data=request.data, weights=request.weights, plan=request.plan, device=request.device,
        limit=request.limit, timing=True, roofline=True, trace=True, mistakes=labelled,
    )  # fmt: skip
    profiled = profile(asked, partial(say, "images, all passes"))
    if profiled.outcome.interrupted:
        raise KeyboardInterrupt
    run, name = profiled.outcome, profiled.outcome.plan.name
    names = {"data": Path(run.data).name, "weights": Path(run.weights.source).name}
    document = profiled.document() | names | {"plan_name": name}
    documents = [_read_back(document, f"plan {name}")]
    if run.counts is not None:
        documents[0]["mistakes"] = section(run.counts, run.mistakes)
    documents.append(_read_back(json.loads(profiled.as_trace()), f"plan {name}, traced"))
    wrong, compared, left_out = [], [], []
    for what, outcome in _comparisons(request, profiled.outcome, say):
        documents.append(_read_back(outcome.document, f"compare {what}"))
        compared.append(what)
        wrong += [f"{what} {name}" for name in outcome.wrong]
        entries = outcome.document["candidates"]
        late = [f"{what} {entry['name']}" for entry in entries if entry.get("note") == UNCHECKED]
        left_out += late if len(late) <= _NAMED else [f"{len(late)} of {what}'s {len(entries)}"]
    if request.seconds:
        left_out = [what for what in COMPARED if what not in compared] + left_out
    size = write_page(request.out, page(documents, left_out=left_out))
    return ReportOutcome(size, documents, wrong=wrong, left_out=left_out)


def _comparisons(
    request: ReportRequest, outcome: Outcome, say: Say
) -> Iterator[tuple[str, CompareOutcome]]:
    device = "cpu" if outcome.gpu is None else "cuda"
    start, took = clock(), inf
    for index, what in enumerate(COMPARED):
        begun = clock()
        left = request.seconds - (begun - start)
        if left <= 0 or (took < inf and left < took / 2):
            return
        share = left / (len(COMPARED) - index)
        images = max(_LEAST_IMAGES, round(share * _PER_SECOND[device]))
        asked = CompareRequest(
            what=what, data=request.data, weights=request.weights, device=request.device,
            batch=min(outcome.done, _MOST_IMAGES[device], images), watch=min(_WATCH_S, share / 20),
            seconds=share / 4, checks=share / 2,
        )  # fmt: skip
        compared = run_compare(asked, lambda text, *how, what=what: say(f"{what}: {text}", *how))
        if compared.document["interrupted"]:
            raise KeyboardInterrupt
        took = min(took, clock() - begun)
        yield what, compared
