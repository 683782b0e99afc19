"""The sum over names, types, shapes and attributes of an HDF5 file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.files import hdf5
from lenetgpu.files.checksums.sums import described
from lenetgpu.files.hdf5.guard import MAX_TEXT_BYTES

_MOST = 2 << 20
"""Characters of all attributes together, in hex."""


def sum_of_facts(file: Any, items: Mapping[str, Any], path: str, but: str) -> str:
    """Of an open file and data sets of it, being read or written; `but` the root's attribute `but`.

    LenetError where there are more attributes than fit a file with sums, or others.
    """
    facts = _facts(file, "", _MOST, path, but)
    for name, item in items.items():
        left = _MOST - sum(len(value) for _, _, value in facts)
        facts.append((name, "", described(item.dtype, item.shape)))
        facts += _facts(item, name, left, path, None)
    return hashlib.sha256(json.dumps(sorted(facts)).encode()).hexdigest()


def _facts(
    holder: Any, where: str, most: int, path: str, but: str | None
) -> list[tuple[str, str, str]]:
    """(object, attribute, value) of all attributes but one.

    LenetError where their values are longer than `most` together.
    """
    found: list[tuple[str, str, str]] = []
    for name in hdf5.attribute_names(holder):
        if name != but:
            found.append((where, name, _value(holder.id, name, path)))
            most -= len(found[-1][2])
        if most < 0:
            raise LenetError(
                f"{path}: expected attributes of at most {_MOST // 2:,} bytes beside "
                "checksums, found more"
            )
    return found


def _value(holder: Any, name: str, path: str) -> str:
    """An attribute's type, shape and bytes as they lie in the file."""
    import h5py
    import numpy as np

    opened = h5py.h5a.open(holder, name.encode())
    kind, space = opened.get_type(), opened.get_space()
    code, items = kind.get_class(), space.get_simple_extent_npoints()
    plain = code in (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM)
    fixed = code == h5py.h5t.STRING and not kind.is_variable_str()
    if not (plain or fixed) or not 0 < items * kind.get_size() <= MAX_TEXT_BYTES:
        raise LenetError(
            f"{path}: expected attribute {name} to be numbers or text of fixed length beside a "
            f"checksum, found another type, or more than {MAX_TEXT_BYTES:,} bytes: the file was "
            "changed since it got its checksums"
        )
    raw = np.zeros(space.get_simple_extent_dims(), f"V{kind.get_size()}")
    opened.read(raw, mtype=kind)
    return f"{described(kind.dtype, raw.shape)} {raw.tobytes().hex()}"
