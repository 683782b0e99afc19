"""Files of labels as they were listed: whether they are still, and what else has such a name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from lenetgpu.cpu.threads import core_count
from lenetgpu.errors import LenetError
from lenetgpu.files.regular import open_regular
from lenetgpu.jobs.job import Job
from lenetgpu.jobs.manifest import Row
from lenetgpu.store import known_by, sizes


def altered(folder: Path, rows: Iterable[Row]) -> list[tuple[Row, str]]:
    """The lines whose file in `folder` is not the one that was listed any more, each with why.

    Every file is read: 4 bytes an image (44 with scores), beside the 784 that its label came of.
    """
    listed = list(rows)
    with ThreadPoolExecutor(core_count(), thread_name_prefix="lenetgpu-look") as pool:
        found = pool.map(lambda row: _altered(folder, row), listed)
        return [(row, why) for row, why in zip(listed, found, strict=True) if why]


def _altered(folder: Path, row: Row) -> str:
    """Why a file is not the listed one, or nothing."""
    path = folder / row.file
    try:
        if sizes(folder, [row.file]).get(row.file, row.size) == row.size:
            with open_regular(path, "the labels that were listed") as file:
                if known_by(file) == (row.size, row.digest):
                    return ""
    except LenetError as error:
        return str(error)
    except OSError as error:
        return f"{path}: expected the labels that were listed, found: {error.strerror}"
    return f"{path}: expected the labels that were listed, found them changed since"


def clear(folder: Path, job: Job, rows: Iterable[Row]) -> None:
    """Remove files that have names of the job's files of labels and are not those of `rows`.

    Whoever wrote one was killed before its line, or it is not whole: its rows come once more, under
    this name or within another file.
    """
    kept, name = {row.file for row in rows}, re.compile(rf"part-(\d{{6,}}){re.escape(job.form)}")
    for there in sizes(folder):
        found = name.fullmatch(there)
        if found and there not in kept and int(found[1]) < job.numbers:
            with suppress(OSError):  # it is written over, or the job says that it cannot be
                (folder / there).unlink()
