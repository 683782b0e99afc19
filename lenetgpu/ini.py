"""Reader of the package's own tables of text."""

from functools import cache
from pathlib import Path


@cache
def ini(path: Path) -> dict[str, dict[str, str]]:
    """Return the sections of an INI file, in order; an indented line continues a value."""
    # configparser takes 5 ms of the start of every command.
    sections: dict[str, dict[str, str]] = {}
    section, key = "", ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("["):
            section = line[1:-1]
            sections[section] = {}
        elif line.startswith(" "):
            sections[section][key] += "\n" + line.strip()
        elif line and not line.startswith("#"):
            key, _, value = map(str.strip, line.partition("="))
            sections[section][key] = value
    return sections
