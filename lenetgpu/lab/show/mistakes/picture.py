"""Mistakes drawn by matplotlib: who was read as whom, and the wrong images."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.check.mistakes import confusions, per_digit
from lenetgpu.errors import one_line
from lenetgpu.lab.show.mistakes.lines import bounded, probability, share
from lenetgpu.lab.show.mistakes.told import told
from lenetgpu.lab.show.plots import save
from lenetgpu.network import CLASSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lenetgpu.check.mistakes import Gallery
    from lenetgpu.measure.outcome import Outcome

_INK, _SOFT, _LINE = "#1d1c1a", "#5d5a55", "#dedad3"
_RIGHT, _WRONG, _READ = "#6fa8dc", "#f0a35e", "#a64b06"
_WIDTH = 11.0
_HEAD, _MATRIX, _FOOT = 1.15, 5.2, 0.45
_LINE_LENGTH = 150
_COLUMNS, _SIDE, _TILE = 12, 28, (36, 52)
"""Tiles a row; pixels of a digit, and of a tile with its words: across, down."""
_LEGEND = "Right ones are blue, mistakes orange,\neach the deeper the more: by square roots."


def draw(path: Path, outcome: Outcome) -> None:
    """A picture of a run that kept its mistakes; LenetError where it cannot be written."""
    from matplotlib.figure import Figure

    assert outcome.mistakes is not None
    found, said = outcome.mistakes, told(outcome)
    rows = -(-len(found.worst) // _COLUMNS)
    tiles = rows * _TILE[1] * _WIDTH * 0.96 / (_COLUMNS * _TILE[0])
    height = _HEAD + _MATRIX + (0.5 + tiles if rows else 0) + _FOOT
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")

    def pane(left: float, top: float, wide: float, high: float) -> Axes:
        """Axes at so many inches from the left and the top."""
        return figure.add_axes(
            (left / _WIDTH, 1 - (top + high) / height, wide / _WIDTH, high / height)
        )

    def line(words: str, top: float, size: float, colour: str = _INK, weight: int = 400) -> None:
        figure.text(0.02, 1 - top / height, words, fontsize=size, color=colour, va="top",
                    weight=weight, parse_math=False)  # fmt: skip

    line(said.title, 0.2, 17, weight=700)
    line(said.lead, 0.58, 10.5)
    facts = [one_line(f"{name} {value}") for name, value in said.shown.items()]
    line("\n".join(textwrap.wrap(", ".join(facts), _LINE_LENGTH, max_lines=3)), 0.84, 8.5, _SOFT)
    _matrix(pane(0.75, _HEAD + 0.5, 5.5, _MATRIX - 0.7), outcome.counts)
    _pairs(pane(8.0, _HEAD + 0.5, 2.6, 2.8), outcome.counts)
    figure.text(7.3 / _WIDTH, 1 - (_HEAD + _MATRIX - 0.2) / height, _LEGEND, fontsize=8.5,
                color=_SOFT)  # fmt: skip
    if rows:
        top = _HEAD + _MATRIX + 0.15
        line("The mistakes", top, 12, weight=700)
        line(bounded(len(found.worst), len(found.rows)) + " Under each: what was read, how "
             "probable; what came second; the number of the image, from 0.", top + 0.27, 8.5,
             _SOFT)  # fmt: skip
        _gallery(pane(0.02 * _WIDTH, top + 0.5, 0.96 * _WIDTH, tiles), found)
    save(figure, path)


def _bare(axes: Axes) -> None:
    axes.tick_params(length=0, colors=_SOFT, labelsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _matrix(axes: Axes, counts: Any) -> None:
    """Counts in cells, right ones and mistakes in colours of their own, by square roots."""
    import numpy as np
    from matplotlib.colors import to_rgb

    right = np.eye(CLASSES, dtype=bool)
    shades = np.ones((CLASSES, CLASSES, 3))
    for kind, colour in ((right, _RIGHT), (~right, _WRONG)):
        most = max(1, counts[kind].max())
        level = np.sqrt(counts[kind] / most)[:, None]
        shades[kind] = 1 - level * (1 - np.array(to_rgb(colour)))
    axes.imshow(shades, aspect="auto")
    for label, row in enumerate(counts.tolist()):
        for predicted, images in enumerate(row):
            if images:
                axes.text(predicted, label, f"{images:,}", ha="center", va="center", fontsize=9,
                          color=_INK)  # fmt: skip
    for row in per_digit(counts):
        axes.text(CLASSES + 0.45, row["digit"], share(row["accuracy"]), ha="right", va="center",
                  fontsize=9, color=_INK)  # fmt: skip
    axes.text(CLASSES + 0.45, -0.78, "right", ha="right", va="center", fontsize=9, color=_SOFT)
    edges = np.arange(CLASSES + 1) - 0.5
    axes.hlines(edges, -0.5, CLASSES - 0.5, color=_LINE, linewidth=0.7)
    axes.vlines(edges, -0.5, CLASSES - 0.5, color=_LINE, linewidth=0.7)
    axes.set_xlim(-0.5, CLASSES + 0.5)
    axes.set_xticks(range(CLASSES))
    axes.set_yticks(range(CLASSES))
    axes.xaxis.tick_top()
    axes.set_xlabel("read as", loc="left", color=_SOFT, fontsize=9)
    axes.xaxis.set_label_position("top")
    axes.set_ylabel("is", color=_SOFT, fontsize=9, rotation=0, labelpad=12)
    _bare(axes)


def _pairs(axes: Axes, counts: Any) -> None:
    """The pairs that are confused most, as bars."""
    pairs = confusions(counts)[:8]
    _bare(axes)
    axes.set_xticks([])
    names = [f"{pair['label']} read as {pair['predicted']}" for pair in pairs]
    axes.set_yticks([-place for place in range(len(pairs))], names)
    axes.set_ylim(-7.5, 0.5)
    for place, pair in enumerate(pairs):
        axes.barh(-place, pair["images"], color=_WRONG, height=0.7)
        axes.text(pair["images"], -place, f" {pair['images']:,}", va="center", fontsize=9,
                  color=_INK)  # fmt: skip


def _gallery(axes: Axes, found: Gallery) -> None:
    """The worst ones in rows, ink dark on light, with their words."""
    import numpy as np

    wide, high = _TILE
    rows = -(-len(found.worst) // _COLUMNS)
    sheet = np.full((rows * high, _COLUMNS * wide), 255, np.uint8)
    axes.set_axis_off()
    for place, (row, image) in enumerate(zip(found.worst, found.images, strict=True)):
        y, x = high * (place // _COLUMNS), wide * (place % _COLUMNS)
        sheet[y : y + _SIDE, x : x + _SIDE] = 255 - image
        words = [
            (f"{row['label']} read as {row['predicted']}", _READ, 7.5),
            (f"{probability(row['probability'])}, then {row['runner_up']}", _INK, 7),
            (f"{row['index']:,}", _SOFT, 7),
        ]
        for number, (word, colour, size) in enumerate(words):
            axes.text(x, y + _SIDE + 2.5 + 6 * number, word, fontsize=size, color=colour, va="top")
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="auto")
