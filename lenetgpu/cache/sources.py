"""Which sources an entry is of: a digest of the package's own Python files."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import lenetgpu


@cache
def sources(*parts: str) -> str:
    """A digest of the package's Python files; of `parts`, files or folders of it, where named."""
    package = Path(lenetgpu.__file__).parent
    digest = hashlib.sha256(lenetgpu.__version__.encode())
    for part in parts or ("",):
        found = package / part
        for path in sorted(found.rglob("*.py")) if found.is_dir() else [found]:
            digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
