"""Mistakes to a file: drawn in .png or .html, listed in .csv."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.check.mistakes import ROW
from lenetgpu.errors import LenetError, require_extra
from lenetgpu.files.output import replacing

if TYPE_CHECKING:
    from lenetgpu.measure.outcome import Outcome

ENDINGS = (".png", ".html", ".csv")
_EXTRAS = {".png": ("matplotlib", "plot"), ".html": ("jinja2", "report")}
_COLUMNS = (
    "index",
    "label",
    "predicted",
    "probability",
    "label_probability",
    "runner_up",
    "runner_up_probability",
)
_ROWS = 1 << 15


def check_errors(path: Path) -> None:
    """Raise LenetError unless mistakes can be written in the form that `path` ends in."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise LenetError(
            f"--errors {path}: expected a name ending in {', '.join(ENDINGS[:-1])} or "
            f"{ENDINGS[-1]}, found {path.suffix or 'no ending'}"
        )
    if ending in _EXTRAS:
        require_extra("--errors", *_EXTRAS[ending])


def write_errors(path: Path, outcome: Outcome) -> None:
    """Write what a run read wrong, whole or not at all; LenetError where it cannot be written."""
    assert outcome.mistakes is not None
    ending = path.suffix.lower()
    if ending == ".csv":
        write_list(path, outcome.mistakes.rows)
    elif ending == ".png":
        from lenetgpu.lab.show.mistakes.picture import draw

        draw(path, outcome)
    else:
        from lenetgpu.lab.show.page.mistakes import write

        write(path, outcome)


def write_list(path: Path, rows: Any) -> None:
    """A line a wrong image, in order; `rows` (k,) of ROW."""
    kinds = dict(ROW)
    line = ",".join("%.9g" if kinds[name] == "<f8" else "%d" for name in _COLUMNS) + "\n"
    with replacing(path) as made, made.open("w", encoding="ascii", newline="") as file:
        file.write(",".join(_COLUMNS) + "\n")
        for lo in range(0, len(rows), _ROWS):
            part = [rows[name][lo : lo + _ROWS].tolist() for name in _COLUMNS]
            file.writelines(line % values for values in zip(*part, strict=True))
