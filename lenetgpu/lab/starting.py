"""`variants --new KIND FOLDER`: two files to write a variant from, which are right as they are."""

from __future__ import annotations

import os
import shlex
from importlib import resources
from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.net.device import choose_device
from lenetgpu.network import STAGES
from lenetgpu.stages.registry import KINDS
from lenetgpu.store import write_atomically

_ENDINGS = {".py": "launches it, and computes the same on a CPU", ".cu": "the kernel"}
_SHOWN = {"conv": "conv2"}
_SHORT = " --batch 20 --seconds 5"
"""What keeps a comparison short on a CPU, where loops are slow."""


def start(kind: str, folder: Path) -> list[tuple[str, str]]:
    """Write KIND.py and KIND.cu into `folder`, and give (what, found) lines on what to do next.

    Raises LenetError where `kind` is none, `folder` is no folder or a file of either name is there;
    nothing is written then.
    """
    if kind not in KINDS:
        raise LenetError(f"--new: expected a kind of {', '.join(KINDS)}, found {kind!r}")
    if folder.exists() and not folder.is_dir():
        raise LenetError(f"--new: expected a folder or a new name, found the file {folder}")
    files = {folder / f"{kind}{ending}": what for ending, what in _ENDINGS.items()}
    for file in files:
        if os.path.lexists(file):
            raise LenetError(f"--new: expected no {file}, found one, which stays as it is")
    texts = resources.files("lenetgpu.lab") / "start"
    written: list[Path] = []
    try:
        for file in files:
            write_atomically(file, (texts / file.name).read_bytes())
            written.append(file)
    except BaseException:
        for file in written:
            file.unlink()
        raise
    stage = _SHOWN.get(kind) or next(stage.name for stage in STAGES if stage.kind == kind)
    command = f"lenetgpu compare {stage} --with {shlex.quote(shown(folder))}"
    if choose_device("auto")[0] is None:
        command += _SHORT
    return [*((str(file), what) for file, what in files.items()), ("next", command)]


def shown(folder: Path) -> str:
    """`folder` so that it reads as one, and no option."""
    text = str(folder)
    return f"{'./' if text.startswith('-') else ''}{text.rstrip(os.sep)}{os.sep}"
