"""The command `infer` for pictures or several files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.cli.ending import say
from lenetgpu.files.kinds import require_pictures

if TYPE_CHECKING:
    from lenetgpu.lab.console import Console
    from lenetgpu.lab.pictures import Classified
    from lenetgpu.measure.outcome import Outcome, Progress, Request
    from lenetgpu.pictures.given import Expanded, Gathered


@dataclass
class Given:
    """Meaning of the arguments: `data`, one file read in parts (None: the default), or pictures."""

    data: Path | None
    expanded: Expanded | None = None
    as_is: bool = False
    found: Gathered | None = None
    done: Classified | None = None

    @property
    def files(self) -> list[Path | None]:
        """Files that are read, which no result may replace."""
        return (
            [self.data] if self.expanded is None else [Path(path) for path in self.expanded.paths]
        )

    @property
    def bad(self) -> list[str]:
        """A message for each picture that has no label."""
        return [] if self.found is None else self.found.bad

    def read(self, request: Request, progress: bool) -> None:
        """Read and prepare the pictures; print a line for each bad one if there are others."""
        if self.expanded is None:
            return
        from lenetgpu.lab.console import progress_bar
        from lenetgpu.lab.pictures import gathered

        with progress_bar(progress, "pictures read") as advance:
            paths, bad = self.expanded.paths, self.expanded.bad
            self.found = gathered(request, paths, bad, self.as_is, advance)
        if self.found.names or len(self.bad) > 1:
            for sentence in self.bad:
                say(f"lenetgpu: {sentence}", err=True)

    def classify(self, request: Request, progress: Progress | None, output: Path | None) -> Outcome:
        """Label the images, and write the labels to `output` if given."""
        from lenetgpu.lab.pictures import Classified, classify

        if self.found is not None:
            self.done = classify(request, self.found, progress, output)
            return self.done.outcome
        from lenetgpu.files.assets import default_digits
        from lenetgpu.lab.infer import infer

        outcome = infer(request, progress, output)
        self.done = Classified.of_file(outcome, str(self.data or default_digits().name))
        return outcome

    def json(self) -> dict[str, Any]:
        """Return the additional fields of the JSON."""
        return {} if self.done is None else self.done.as_json()

    def print(self, console: Console, outcome: Outcome) -> None:
        """Print the table and the drawn digits, or counts; then notes about skipped files.

        Nothing is printed for one file whose images have labels: its accuracy is shown
        instead.
        """
        if self.done is not None or outcome.truth is None:
            from lenetgpu.lab import pictures
            from lenetgpu.lab.render import show

            if self.done is not None:
                show(console, pictures.parts(self.done.rows(), self.done.images, console.width))
            else:
                show(console, [pictures.counts(outcome.labels.tolist())])
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
