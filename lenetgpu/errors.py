"""The package's exception (one sentence, exit code 2) and escaping of untrusted text."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_ADDRESS = re.compile(r" object at 0x[0-9A-Fa-f]+(?=>)")  # in reprs, different in every run
_WORD, _LINE = 300, 2_000  # maximum printed characters of a word and of a line


def one_line(text: object) -> str:
    """Make untrusted text safe for a terminal: `printable`, long words and lines shortened."""
    shown = printable(str(text))
    if len(shown) > _WORD:
        shown = re.sub(rf"\S{{{_WORD + 1},}}", lambda word: _cut(word[0], _WORD), shown)
    return _cut(shown, _LINE)


def printable(text: str) -> str:
    """Escape control, escape and format characters, newlines and lone surrogates in `text`."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def first_line(what: object, instead: str = "") -> str:
    """Return the first line of a text or an exception's message, `instead` or the class name."""
    return (str(what).splitlines() or [""])[0] or instead or type(what).__name__


def _cut(text: str, most: int) -> str:
    """Shorten `text` to `most` characters by cutting the middle."""
    if len(text) <= most:
        return text
    room = most - 40  # for the words between
    head = room * 3 // 4
    gap = f"...({len(text) - room:,} characters)..."
    return text[:head] + gap + text[len(text) - room + head :]


def choose(found: str, names: Iterable[str]) -> str:
    """Return the end of an error for an unknown name: the valid names and close matches."""
    from difflib import get_close_matches

    names = list(dict.fromkeys(names))
    lower = {name.lower(): name for name in names}
    near = get_close_matches(found.lower(), lower, n=2, cutoff=0.7)
    meant = f"; did you mean {' or '.join(lower[word] for word in near)}?" if near else ""
    return f"choose from: {', '.join(names)}{meant}"


def require_extra(what: str, module: str, extra: str) -> None:
    """Raise LenetError if `module`, which `what` needs, is missing; `extra` installs it."""
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise LenetError(
            f"{what}: requires {module}, which is not installed; pip install 'lenetgpu[{extra}]'"
        )


# signals that end a command by KeyboardInterrupt, as names because not every system has all
ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


class LenetError(Exception):
    """Bad input or usage, in one printable sentence: what, where, expected, found."""

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(_ADDRESS.sub("", sentence)))


def unexpected(where: object, expected: str, found: str) -> LenetError:
    """Return the error of a file, or whatever `where` names, that holds another thing."""
    return LenetError(f"{where}: expected {expected}, found {found}")
