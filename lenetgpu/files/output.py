"""Predicted labels to a file: .npy, .csv, .h5 or .json, never half a file."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.store import write_atomically


def _npy(labels: Any, scores: Any, asked: int | None) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    if scores is None:
        np.save(buffer, labels)
    else:
        rows = np.empty(len(labels), [("label", "<i4"), ("scores", "<f4", scores.shape[1:])])
        rows["label"], rows["scores"] = labels, scores
        np.save(buffer, rows)
    return buffer.getvalue()


def _csv(labels: Any, scores: Any, asked: int | None) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [] if scores is None else [f"score{k}" for k in range(scores.shape[1])]
    writer.writerow(["index", "label", *names])
    for index, label in enumerate(labels.tolist()):
        row = [] if scores is None else [f"{value:.9g}" for value in scores[index]]
        writer.writerow([index, label, *row])
    return text.getvalue().encode()


def _json(labels: Any, scores: Any, asked: int | None) -> bytes:
    document: dict[str, Any] = {"labels": labels.tolist()}
    if asked is not None:
        document = {"interrupted": True, "images_asked": asked} | document
    if scores is not None:
        document["scores"] = scores.astype(float).tolist()
    return json.dumps(document).encode()


def _h5(labels: Any, scores: Any, asked: int | None) -> bytes:
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset("labels", data=labels, track_times=False)
        if scores is not None:
            file.create_dataset("scores", data=scores, track_times=False)
        if asked is not None:
            file.attrs.update({"interrupted": True, "images_asked": asked})
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Any, Any, int | None], bytes]] = {
    ".npy": _npy,
    ".csv": _csv,
    ".h5": _h5,
    ".json": _json,
}


def check_target(path: Path) -> None:
    """Raise LenetError unless `path` ends in a known format and its folder exists."""
    if path.suffix not in FORMATS:
        raise LenetError(
            f"{path}: expected a name ending in {', '.join(FORMATS)}, "
            f"found {path.suffix or 'no ending'}"
        )
    require_folder(path)


def require_folder(path: Path) -> None:
    """Raise LenetError unless the folder that `path` would be written to exists."""
    try:
        if not path.parent.is_dir():
            raise LenetError(f"{path}: expected an existing folder {path.parent}, found none")
        if path.is_dir():
            raise LenetError(f"{path}: expected a file to write, found a folder")
    except OSError as error:
        raise LenetError(f"{path}: expected a file to write, found: {error.strerror}") from error
    if path.exists():
        return
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return
    except OSError as error:
        raise LenetError(
            f"{path}: expected a folder to write into, found: {error.strerror}"
        ) from error


def require_targets(*paths: Path | None) -> None:
    """Raise LenetError unless every target (None: not wanted, -: stdout) can be written to.

    No two may be the same file, or both stdout.
    """
    seen: set[str] = set()
    for path in paths:
        if path is None:
            continue
        name = "-" if str(path) == "-" else str(path.resolve())
        if name in seen:
            where = "stdout" if name == "-" else str(path)
            raise LenetError(f"{where}: expected one result there, found two")
        seen.add(name)
        if name != "-":
            require_folder(path)


def write_labels(path: Path, labels: Any, scores: Any = None, asked: int | None = None) -> None:
    """Write labels (N,) int32, and scores (N, 10) where given, in the format of `path`'s ending.

    Of a run that was interrupted, `asked` images were to be labelled: .json and .h5 say so, the
    other two have no place for it and are only shorter.
    """
    write_atomically(path, FORMATS[path.suffix](labels, scores, asked))
