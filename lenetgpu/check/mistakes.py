"""Misclassified images: confusion counts, and each wrong image with its probabilities.

"Label" is the data set's class of an image, "predicted" the network's.
"""

from dataclasses import dataclass
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.files.reading import Source
from lenetgpu.network import CLASSES, IMAGE_SHAPE

_AT_ONCE = 1 << 20
# A wrong image: its index in the data set, its label, the prediction and the runner-up.
ROW = [("index", "<i8"), ("label", "u1"), ("predicted", "u1"), ("runner_up", "u1")]
ROW += [("probability", "<f8"), ("label_probability", "<f8"), ("runner_up_probability", "<f8")]
GALLERY = 120  # Most wrong images that are drawn.


def probabilities(scores: Any) -> Any:
    """Return the softmax of scores (N, 10), any float type, as float64 (N, 10); rows sum to 1."""
    shifted = np.asarray(scores, dtype=np.float64)
    shifted = np.exp(shifted - shifted.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def confusion(labels: Any, predicted: Any) -> Any:
    """Return counts (10, 10) int64 of images by label (rows) and prediction (columns)."""
    counts = np.zeros(CLASSES * CLASSES, np.int64)
    for lo in range(0, len(labels), _AT_ONCE):
        pairs = CLASSES * np.asarray(labels[lo : lo + _AT_ONCE], np.int64)
        pairs += predicted[lo : lo + _AT_ONCE]
        counts += np.bincount(pairs, minlength=CLASSES * CLASSES)
    return counts.reshape(CLASSES, CLASSES)


def per_digit(counts: Any) -> list[dict[str, Any]]:
    """Return images, correct ones and accuracy of each digit that occurs."""
    return [
        {"digit": k, "images": sum(row), "correct": row[k], "accuracy": row[k] / sum(row)}
        for k, row in enumerate(counts.tolist())
        if sum(row)
    ]


def confusions(counts: Any) -> list[dict[str, int]]:
    """Return counts of (label, predicted) pairs that differ, most frequent first."""
    pairs = [
        {"label": label, "predicted": predicted, "images": images}
        for label, row in enumerate(counts.tolist())
        for predicted, images in enumerate(row)
        if images and label != predicted
    ]
    return sorted(pairs, key=lambda pair: -pair["images"])


def counts_of(document: dict[str, Any]) -> Any:
    """Return a document's confusion counts (10, 10); None for data without labels."""
    if document.get("per_digit") is None:
        return None
    counts = np.zeros((CLASSES, CLASSES), np.int64)
    for row in document["per_digit"]:
        counts[row["digit"], row["digit"]] = row["correct"]
    for pair in document["confusions"]:
        counts[pair["label"], pair["predicted"]] = pair["images"]
    return counts


@dataclass(frozen=True)
class Gallery:
    """Wrong images: rows (n,) of ROW, names; the worst (k,) and their pixels (k, 28, 28) uint8."""

    rows: Any
    names: list[str]
    worst: Any
    images: Any


class Mistakes:
    """Collector of wrong images from results in parts; `first` is the index of `labels[0]`."""

    def __init__(self, labels: Any, first: int) -> None:
        self._labels, self._first = labels, first
        self._parts: list[Any] = []

    def add(self, at: int, predicted: Any, scores: Any) -> None:
        """Add the wrong images of a part from `at` on: predicted (n,) with scores (n, 10)."""
        labels = self._labels[at : at + len(predicted)]
        wrong = np.flatnonzero(predicted != labels)
        if not len(wrong):
            return
        index, shares = np.arange(len(wrong)), probabilities(scores[wrong])
        rows = np.empty(len(wrong), ROW)
        rows["index"] = self._first + at + wrong
        rows["label"], rows["predicted"] = labels[wrong], predicted[wrong]
        rows["label_probability"] = shares[index, rows["label"]]
        rows["probability"] = shares[index, rows["predicted"]]
        shares[index, rows["predicted"]] = -1
        rows["runner_up"] = shares.argmax(axis=1)
        rows["runner_up_probability"] = shares[index, rows["runner_up"]]
        self._parts.append(rows)

    def rows(self, done: int) -> Any:
        """Return the wrong images (k,) of ROW among the first `done` images, in order."""
        rows = np.concatenate([np.empty(0, ROW), *self._parts])
        return rows[rows["index"] < self._first + done]


def gallery(rows: Any, source: Source, most: int = GALLERY) -> Gallery:
    """Return the `most` probable wrong rows and their images; raise LenetError if damaged."""
    shown = rows[np.argsort(-rows["probability"], kind="stable")[:most]]
    images = np.empty((len(shown), *IMAGE_SHAPE[:2]), np.uint8)
    image = np.empty((1, *IMAGE_SHAPE), source.dtype)
    for position in np.argsort(shown["index"]).tolist():  # in file order, for gzip
        source.read(int(shown["index"][position]) - source.selection.start, image)
        pixels = image if image.dtype == np.uint8 else np.rint(255 * np.clip(image, 0, 1))
        images[position] = pixels[0, ..., 0]
    names = [source.name(number) for number in (rows["index"] - source.selection.start).tolist()]
    return Gallery(rows, names, shown, images)
