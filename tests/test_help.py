"""`--help` of every command: headings, each default once, at any width.

Options are declared in cli/options.ini; one of a command with many options needs an entry in
cli/help.ini.
"""

import re
import shlex

import click
import pytest
from terminal import run

from lenetgpu.cli import main
from lenetgpu.cli.help import ALL, OTHER, SETTINGS, grouped, texts


def walked(command=main, words=()):
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walked(child, (*words, name))


EVERY = {" ".join(words): command for words, command in walked()}
each = pytest.mark.parametrize("words", EVERY, ids=lambda words: words or "lenetgpu")


def shown(words, width=100):
    done = run(*words.split(), "--help", terminal_width=width, code=0)
    return done.output


def options_of(words):
    found = EVERY[words].get_params(click.Context(EVERY[words], **SETTINGS))
    return [param for param in found if isinstance(param, click.Option) and not param.hidden]


@each
def test_options_are_grouped_under_headings(words):
    options = options_of(words)
    groups = grouped(options)
    assert sorted(o.opts for group in groups.values() for o in group) == sorted(
        option.opts for option in options
    )
    if list(groups) != [ALL]:
        assert list(groups) == [name for name in (*texts("headings"), OTHER) if name in groups]
        left = [option.opts for option in groups[OTHER]]
        assert len(left) == 1 and "--help" in left[0], "give it a place in cli/help.ini"
    sections = re.findall(r"^(\w.*):$", shown(words), re.MULTILINE)
    assert [name for name in sections if name in groups] == list(groups)


@each
def test_defaults_are_shown_once(words):
    text, options = " ".join(shown(words).split()), options_of(words)
    assert [option.name for option in options if "default" in option.help.lower()] == []
    assert "[default: False]" not in text and "[default: None]" not in text
    assert "[default: (" in shown("infer") and "[default: 20" in shown("compare")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_fits_the_width_and_shows_every_option(width):
    for words in EVERY:
        text = shown(words, width)
        assert max(map(len, text.splitlines())) <= width, words
        assert "..." not in re.sub(r"\[?[A-Z]+\]?\.\.\.", "", text), words
        for option in options_of(words):
            assert re.search(rf"^ +.*{re.escape(option.opts[-1])}\b", text, re.MULTILINE), words
        for name in getattr(EVERY[words], "commands", {}):
            assert re.search(rf"^  {name}\b", text, re.MULTILINE)


@each
def test_command_examples_parse(words):
    if hasattr(EVERY[words], "commands"):
        return
    assert "Examples:" in shown(words)
    for line in texts("examples")[words].splitlines():
        assert f"lenetgpu {words} {line}".strip() in " ".join(shown(words).split())
        given = shlex.split(line.partition(">>")[0])
        EVERY[words].make_context(words, given, resilient_parsing=words == "infer")
