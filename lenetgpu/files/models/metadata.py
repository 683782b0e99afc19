"""Checksums and provenance as the text that safetensors, ONNX and a zip's comment have room for.

`lenetgpu.sha256.NAME` is a stored tensor's SHA-256, as `files/checksums.py` makes it, and
`lenetgpu.sha256` one over all other entries, so that what is renamed, dropped or described
otherwise is noticed. Other entries are provenance and kept as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files import checksums
from lenetgpu.files.hdf5 import MAX_ATTRIBUTES, MAX_TEXT_BYTES

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

WHOLE = "lenetgpu.sha256"
_OF = f"{WHOLE}."
_MOST_NAME = 200


def stated(tensors: Mapping[str, Array], facts: Mapping[str, object]) -> dict[str, str]:
    """The entries for a file of these tensors, as it stores them, and what is known of them."""
    found = {
        name: str(fact)
        for name, fact in facts.items()
        if name != checksums.ATTRIBUTE and not name.startswith(WHOLE)
    }
    found |= {_OF + name: checksums.sum_of(tensor) for name, tensor in tensors.items()}
    found[WHOLE] = _over(found)
    return dict(sorted(found.items()))


def compared(
    path: Path, tensors: Mapping[str, Array], entries: Mapping[str, str]
) -> checksums.Sums:
    """The sums that a file states; LenetError where its tensors or entries are not as written."""
    sums = {name.removeprefix(_OF): text for name, text in entries.items() if name.startswith(_OF)}
    found = checksums.Sums(str(path), sums, where="tensor ", noun="tensor")
    if WHOLE not in entries and not sums:
        return found
    if sorted(sums) != sorted(tensors):
        raise LenetError(
            f"{path}: expected a checksum of each tensor ({', '.join(sorted(tensors))}), found "
            f"those of {', '.join(sorted(sums)) or 'none'}: the file is damaged, "
            "or was changed since"
        )
    checksums.compare(f"{path}: expected its metadata", entries.get(WHOLE, "none"), _over(entries))
    for name, tensor in tensors.items():
        found.require(name, tensor)
    return found


def facts_of(
    entries: Mapping[str, str], but: Iterable[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What is provenance of a file's metadata, and the names of what no attribute can hold."""
    others = {
        name: text
        for name, text in entries.items()
        if not (name.startswith(WHOLE) or name in but or name == checksums.ATTRIBUTE)
    }
    kept = {name: text for name, text in others.items() if _holds(name, text)}
    kept = dict(list(kept.items())[: MAX_ATTRIBUTES // 2])
    return kept, tuple(name for name in others if name not in kept)


def _over(entries: Mapping[str, str]) -> str:
    rest = sorted(item for item in entries.items() if item[0] != WHOLE)
    return hashlib.sha256(json.dumps(rest).encode()).hexdigest()


def _holds(name: str, text: str) -> bool:
    try:
        length, size = len(name.encode()), len(text.encode())
    except UnicodeEncodeError:  # half of a pair
        return False
    return 0 < length <= _MOST_NAME and size <= MAX_TEXT_BYTES and "\0" not in name + text
