"""Files of our own: JSON, and writing so that no half a file is ever seen."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`: a file through a temporary one, a device or pipe as it is.

    Symbolic links are followed. Raises LenetError where it cannot be written.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:
                stream.write(data)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, data)
    except OSError as error:
        reason = error.strerror or str(error)
        raise LenetError(f"{path}: expected a place to write to, found: {reason}") from error


def json_text(document: Any, indent: int | None = None) -> str:
    """`document` as JSON, with null for what JSON has no number for: NaN and infinity."""
    try:
        return json.dumps(document, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_of_json(document), indent=indent, allow_nan=False)


def _of_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _of_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_of_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".lenetgpu.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        publish(Path(name), target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def publish(made: Path, target: Path) -> None:
    """Give a whole temporary file its name, and the rights of a file that was opened there."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(made, 0o666 & ~mask)
    os.replace(made, target)
