"""Labels on their way to a file, or to none, with the wrong ones noted as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.check.mistakes import Gallery, Mistakes, gallery

if TYPE_CHECKING:
    from lenetgpu.files.output import LabelWriter
    from lenetgpu.files.reading import Source


class Noting:
    """A writer of labels that hands them to `inner`, where there is one, and notes the wrong ones.

    `inner` gets scores where it takes them. `source` has the images, with labels.
    """

    with_scores = True

    def __init__(self, source: Source, inner: LabelWriter | None) -> None:
        self._source, self._inner, self._count = source, inner, 0
        self._mistakes = Mistakes(source.labels, source.chosen.start)

    @property
    def done(self) -> int:
        """Labels that were written so far, or noted where none are written."""
        return self._count if self._inner is None else self._inner.done

    def write(self, labels: Any, scores: Any) -> None:
        """The next labels (n,) with their scores (n, 10), in order; LenetError as of a writer."""
        self._mistakes.add(self.done, labels, scores)
        if self._inner is not None:
            self._inner.write(labels, scores if self._inner.with_scores else None)
        self._count += len(labels)

    def close(self, asked: int | None = None) -> None:
        """Close the file where there is one; `asked` as LabelWriter has it."""
        if self._inner is not None:
            self._inner.close(asked)

    def found(self, done: int) -> Gallery:
        """The wrong ones of the first `done` images; the worst are read once more."""
        return gallery(self._mistakes.rows(done), self._source)
