"""Expansion of folders and patterns to files, the same for every command."""

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from glob import escape, glob, has_magic


def below(folder: str) -> Iterator[str]:
    """Yield the files below `folder`: each folder's files by name, then those of its subfolders.

    Hidden files and folders are skipped; links to folders are not followed. Anything that is
    not a folder counts as a file. Raises OSError if a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    for current, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        yield from (os.path.join(current, name) for name in sorted(files) if name[0] != ".")


def is_pattern(name: str) -> bool:
    """Return True if `name` is a pattern (`*?[`) and no file has that name."""
    return has_magic(name) and not os.path.lexists(name)


def looks_at(pattern: str, path: str) -> bool:
    """Return True if `pattern` would match a file at `path` (absolute, without links)."""
    names = os.path.abspath(os.path.join(escape(os.getcwd()), pattern)).split(os.sep)[1:]
    plain = next((at for at, name in enumerate(names) if has_magic(name)), len(names))
    start = os.path.realpath(os.sep + os.sep.join(names[:plain])).split(os.sep)
    parts = path.split(os.sep)
    start = [name for name in start if name]
    return parts[1 : len(start) + 1] == start and _fits(names[plain:], parts[len(start) + 1 :])


def _fits(patterns: list[str], names: list[str]) -> bool:
    """Return True if patterns match names one by one, `**` any number; hidden names need a dot."""
    if not patterns or (not names and patterns != ["**"]):
        return patterns == names
    if patterns[0] == "**":
        return _fits(patterns[1:], names) or (
            bool(names) and names[0][0] != "." and _fits(patterns, names[1:])
        )
    shown = names[0][0] != "." or patterns[0][:1] == "."
    return shown and fnmatchcase(names[0], patterns[0]) and _fits(patterns[1:], names[1:])


def matching(pattern: str) -> list[str]:
    """Return the files that `pattern` matches, by name; `**` matches nested folders."""
    return sorted(name for name in glob(pattern, recursive=True) if not os.path.isdir(name))
