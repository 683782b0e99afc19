"""`lenetgpu infer` of a person's pictures: which they are, their labels, what is said of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lenetgpu.check.probability import probabilities
from lenetgpu.errors import LenetError
from lenetgpu.files.output import open_labels
from lenetgpu.lab.infer import infer
from lenetgpu.measure.outcome import Outcome, Progress, Request
from lenetgpu.measure.timing import Phases
from lenetgpu.pictures.given import Gathered, gather


@dataclass(frozen=True)
class Classified:
    """What came of pictures: the run, and what was gathered for it; `done` are labelled."""

    outcome: Outcome
    found: Gathered
    images: Any
    """(N, 28, 28, 1) as the network saw them."""
    likely: Any
    """Probabilities (done, 10) float64."""

    @classmethod
    def of_file(cls, outcome: Outcome, name: str) -> Classified | None:
        """Of a file of many images, called `name`, whose images are few; None of more."""
        if outcome.images is None or outcome.scores is None:
            return None
        found, first = Gathered(), outcome.request.skip
        names = [f"{name}[{number}]" for number in range(first, first + outcome.asked)]
        found.add(outcome.images, None, names)
        return cls(outcome, found, outcome.images, probabilities(outcome.scores))

    def rows(self) -> list[dict[str, Any]]:
        """A row an image: file, label, its probability, the runner-up with its own, notes."""
        order = (-self.likely).argsort(axis=1, kind="stable")
        rows = []
        for number, label in enumerate(self.outcome.labels.tolist()):
            second = int(next(one for one in order[number] if one != label))
            chances = self.likely[number]
            rows.append(
                {
                    "file": self.found.names[number],
                    "label": label,
                    "probability": float(chances[label]),
                    "runner_up": {"label": second, "probability": float(chances[second])},
                    "notes": list(self.found.notes[number]),
                }
            )
        return rows

    def as_json(self) -> dict[str, Any]:
        """What the JSON says besides: the rows, and a sentence for each bad picture."""
        return {"rows": self.rows(), "bad": self.found.bad}


def gathered(
    request: Request,
    paths: Sequence[str],
    bad: Sequence[str] = (),
    as_is: bool = False,
    told: Progress | None = None,
) -> Gathered:
    """The images of `paths` that the request asks for, prepared unless `as_is`.

    `bad` are sentences for what has been found to be none, which come first. `told` is called with
    how many of how many files are read.
    """
    request.check()
    phases = Phases()
    with phases.timed("load"):
        found = gather(paths, as_is, request.skip, request.limit, told)
    found.bad[:0] = bad
    found.took_ms = phases["load"]
    return found


def classify(
    request: Request, found: Gathered, progress: Progress | None = None, output: Path | None = None
) -> Classified:
    """Labels of what was gathered, to `output` too where there is one, with the files' names.

    Ctrl-C as in `infer`. LenetError as there, and where nothing was gathered.
    """
    if not found.names:
        raise LenetError(_nothing(found.bad, request.skip))
    request.check_labels(None if found.lacking else (), found.lacking or "")
    whole = replace(request, scores=True, each=False, skip=0, limit=None)
    source = found.source()
    outcome = infer(whole, progress, None, source)
    outcome.phases["load"] = outcome.phases.get("load", 0.0) + found.took_ms
    if output is not None:
        count, scores = outcome.done, outcome.scores if request.scores else None
        with open_labels(output, count, request.scores, request.skip, found.names) as writer:
            writer.write(outcome.labels, scores)
            writer.close(outcome.asked if outcome.interrupted else None)
    return Classified(outcome, found, source.images, probabilities(outcome.scores))


def _nothing(bad: Sequence[str], skip: int) -> str:
    if len(bad) == 1:
        return bad[0]
    if not bad:
        return f"--skip {skip}: expected more images than are skipped, found fewer"
    return f"pictures: expected one that can be classified, found {len(bad):,} that cannot"
