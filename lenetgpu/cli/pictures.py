"""The command `infer` for pictures or several files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.cli.ending import say
from lenetgpu.files.kinds import require_pictures

if TYPE_CHECKING:
    from lenetgpu.lab.console import Console
    from lenetgpu.lab.pictures import Classified
    from lenetgpu.lab.render import Part
    from lenetgpu.measure.outcome import Outcome, Progress, Request
    from lenetgpu.pictures.given import Expanded, Gathered


@dataclass
class Given:
    """Arguments of `infer`: `data`, one file read in parts (None: the default), or pictures."""

    data: Path | None
    expanded: Expanded | None = None
    as_is: bool = False
    gathered: Gathered | None = None
    classified: Classified | None = None

    @property
    def files(self) -> list[Path | None]:
        """Files that are read, which no result may replace."""
        return [Path(p) for p in self.expanded.paths] if self.expanded is not None else [self.data]

    @property
    def bad(self) -> list[str]:
        """A message for each picture that has no label."""
        return [] if self.gathered is None else self.gathered.bad

    def read(self, request: Request, progress: bool) -> None:
        """Read and prepare the pictures; print a line for each bad one if there are others."""
        if self.expanded is None:
            return
        from lenetgpu.lab.console import progress_bar
        from lenetgpu.lab.pictures import gathered

        with progress_bar(progress, "pictures read") as advance:
            paths, bad = self.expanded.paths, self.expanded.bad
            self.gathered = gathered(request, paths, bad, self.as_is, advance)
        if self.gathered.names or len(self.bad) > 1:
            for sentence in self.bad:
                say(f"lenetgpu: {sentence}", err=True)

    def classify(self, request: Request, progress: Progress | None, output: Path | None) -> Outcome:
        """Label the images, and write the labels to `output` if given."""
        from lenetgpu.lab.pictures import Classified, classify

        if self.gathered is not None:
            self.classified = classify(request, self.gathered, progress, output)
            return self.classified.outcome
        from lenetgpu.files.assets import default_digits
        from lenetgpu.lab.infer import infer

        outcome = infer(request, progress, output)
        self.classified = Classified.of_file(outcome, str(self.data or default_digits().name))
        return outcome

    def json(self) -> dict[str, Any]:
        """Return the additional fields of the JSON."""
        return {} if self.classified is None else self.classified.as_json()

    def print(self, console: Console, outcome: Outcome) -> None:
        """Print the table and the drawn digits, or counts; then notes about skipped files.

        Images of a single file with labels have no table: their accuracy is shown instead.
        """
        if self.classified is not None or outcome.truth is None:
            from lenetgpu.lab import pictures
            from lenetgpu.lab.render import show

            parts: Iterable[Part] = [pictures.counts(outcome.labels.tolist())]
            if (done := self.classified) is not None:
                parts = pictures.parts(done.rows(), done.images, console.width)
            show(console, parts)
        for note in [] if self.expanded is None else self.expanded.notes:
            console.print(f"note     {note}")


def given(arguments: Sequence[str], as_is: bool) -> Given:
    """Interpret `arguments`; pictures are not read yet.

    No argument, or one file of HDF5, IDX or .npy, is read in parts and does not accept `as_is`.
    Raises LenetError for that, and if stdin is given twice.
    """
    if not arguments:
        require_pictures(as_is, "the digits that ship")
        return Given(None)
    from lenetgpu.pictures.given import expand, single_data

    expanded = expand(arguments)
    if not expanded.bad and single_data(expanded.paths):
        require_pictures(as_is, f"images in {expanded.paths[0]}")
        return Given(Path(expanded.paths[0]))
    return Given(None, expanded, as_is)
