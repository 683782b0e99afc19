"""The one exception family, one sentence with exit code 2; text that is safe to print."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_ADDRESS = re.compile(r" object at 0x[0-9A-Fa-f]+(?=>)")
"""What Python says of an object without a name: another thing at every run."""
_WORD, _LINE = 300, 2_000
"""Characters of a word without spaces, as a name, and of a line, that are printed at most."""


def one_line(text: object) -> str:
    """Text from files or from outside as a terminal may have it; what is safe stays as it is.

    Characters that print nothing or move what others print (control, escape and format characters,
    newlines, lone surrogates) are escaped as in a Python string; words and lines that are very long
    are cut in the middle.
    """
    shown = printable(str(text))
    if len(shown) > _WORD:
        shown = re.sub(rf"\S{{{_WORD + 1},}}", lambda word: _cut(word[0], _WORD), shown)
    return _cut(shown, _LINE)


def printable(text: str) -> str:
    """`text` as of `one_line`, whole."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def first_line(what: object, instead: str = "") -> str:
    """The first line of what an exception says, or of a text; `instead` where it is empty.

    Without one, an exception's class.
    """
    return (str(what).splitlines() or [""])[0] or instead or type(what).__name__


def _cut(text: str, most: int) -> str:
    """The first and last characters of a `text` that has more than `most`."""
    if len(text) <= most:
        return text
    kept = most - 40  # for the words between
    head = kept * 3 // 4
    left = f"...({len(text) - kept:,} characters)..."
    return text[:head] + left + text[len(text) - kept + head :]


def choose(found: str, names: Iterable[str]) -> str:
    """The end of a sentence for a name that is none: what there is, and what was perhaps meant."""
    from difflib import get_close_matches

    names = list(dict.fromkeys(names))
    lower = {name.lower(): name for name in names}
    near = get_close_matches(found.lower(), lower, n=2, cutoff=0.7)
    meant = f"; did you mean {' or '.join(lower[word] for word in near)}?" if near else ""
    return f"choose from: {', '.join(names)}{meant}"


def require_extra(what: str, module: str, extra: str) -> None:
    """Raise LenetError saying that `what` wants `module`, unless it is installed, as by `extra`."""
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise LenetError(
            f"{what}: expected {module}, found it not installed; pip install 'lenetgpu[{extra}]'"
        )


ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that end a command, by KeyboardInterrupt; their names, since not every system has all."""


class LenetError(Exception):
    """Bad input or usage; the message is one sentence: what, where, expected, found.

    It is safe to print: whatever it quotes goes through `one_line`.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(_ADDRESS.sub("", sentence)))
