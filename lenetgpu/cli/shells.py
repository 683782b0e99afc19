"""Completion in three shells, where Click's own falls short: `--plan=fp`, `cuda:1`, no errors."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

if TYPE_CHECKING:
    _Base = ShellComplete
else:
    _Base = object


class _Quiet(_Base):
    def complete(self) -> str:
        """The completions; what goes wrong is not said into a line that somebody is typing."""
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        return super().complete()


def _without_globs(script: str) -> str:
    """Click's script, in which words are no patterns of files: a line is read at a time."""
    changes = {
        "for completion in $response; do": "while read -r completion; do",
        "    done\n": '    done <<< "$response"\n',
        "read type value": "read -r type value",
        "COMPREPLY+=($value)": 'COMPREPLY+=("$value")',
    }
    return _changed(script, changes)


def _changed(script: str, changes: dict[str, str]) -> str:
    """`script` with parts put in the place of others, as far as this version of Click has them."""
    for old, new in changes.items():
        script = script.replace(old, new)
    return script


class Bash(_Quiet, BashComplete):
    """Bash splits words at `=` and `:`, and replaces what follows the last of them."""

    replaced = ""
    source_template = _without_globs(BashComplete.source_template)

    def get_completion_args(self) -> tuple[list[str], str]:
        """Words and the last one's beginning, put together again."""
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for word in [*args, incomplete]:
            if word == "=" and words and words[-1].startswith("--"):
                words.append("")
            elif words and words[-1] == "" and words[-2].startswith("--"):
                words[-1] = word
            elif words and (word == ":" or words[-1].endswith(":")):
                words[-1] += word
            else:
                words.append(word)
        *args, incomplete = words
        self.replaced = incomplete.rpartition(":")[0] + ":" if ":" in incomplete else ""
        return args, incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """The item without what Bash leaves standing before it."""
        item.value = item.value.removeprefix(self.replaced)
        return super().format_completion(item)


class _Whole(_Quiet):
    """Completes `--plan=fp` as one word, which zsh and fish replace whole."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Click's, each behind the option and its `=` where they were typed as one word."""
        found = super().get_completions(args, incomplete)
        option, equals, begun = incomplete.partition("=")
        if not (equals and option.startswith("--")):
            return found
        words = [item for item in found if item.type == "plain"]
        if len(words) < len(found):
            words = [CompletionItem(path) for path in _paths(begun) if path.isprintable()]
        for item in words:
            item.value = f"{option}={item.value}"
        return words


def _paths(begun: str) -> list[str]:
    """Paths that begin so, folders with a slash behind them."""
    folder, name = os.path.split(begun)
    with os.scandir(folder or ".") as entries:
        found = [e.name + "/" * e.is_dir() for e in entries if e.name.startswith(name)]
    shown = found if name.startswith(".") else [one for one in found if one[0] != "."]
    return [os.path.join(folder, one) for one in sorted(shown)]


class Zsh(_Whole, ZshComplete):
    """Click's, with whole words."""


class Fish(_Whole, FishComplete):
    """Click's, with whole words, which commas do not end."""

    source_template = _changed(
        FishComplete.source_template, {'string split ","': 'string split --max 1 ","'}
    )


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


def register() -> None:
    """Take these for Click's own."""
    for shell in SHELLS.values():
        add_completion_class(shell)
