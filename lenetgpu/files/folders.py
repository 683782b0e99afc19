"""Which files a folder or a pattern stands for: one meaning for every command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from glob import glob, has_magic


def below(folder: str) -> Iterator[str]:
    """Files below `folder`, those of each folder by name before those of its folders.

    Hidden files and folders are left out; links to folders are not followed. What is no folder
    counts as a file, whatever it is. OSError where one cannot be read.
    """
    left = [folder]
    while left:
        place, folders = left.pop(), []
        with os.scandir(place) as entries:
            found = sorted((e for e in entries if e.name[0] != "."), key=lambda entry: entry.name)
        for entry in found:
            if not _is_folder(entry):
                yield entry.path
            elif not entry.is_symlink():
                folders.append(entry.path)
        left += reversed(folders)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a loop of links
        return False


def is_pattern(name: str) -> bool:
    """Whether `name` is a pattern (`*?[`) and no file's name."""
    return has_magic(name) and not os.path.lexists(name)


def matching(pattern: str) -> list[str]:
    """Files that `pattern` matches, by name; `**` stands for folders below each other."""
    return sorted(name for name in glob(pattern, recursive=True) if not os.path.isdir(name))
