"""`--help` of every command: sentences, headings, each default once, at any width.

Whoever adds an option gives it a sentence, and in a command of many a place in `HEADINGS`.
"""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from lenetgpu.cli import main
from lenetgpu.cli.help import ALL, HEADINGS, OTHER, Argument, Command, Commands, default_of, grouped

SENTENCE = re.compile(r"[A-Z].*[^.\s]\.", re.DOTALL)


def walked(command=main, words=()):
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walked(child, (*words, name))


EVERY = {" ".join(words): command for words, command in walked()}
each = pytest.mark.parametrize("words", EVERY, ids=lambda words: words or "lenetgpu")


def context(words):
    """The context of a command below its groups', as it is on the command line."""
    found = main.context_class(main, info_name="lenetgpu")
    command = main
    for name in words.split():
        command = command.commands[name]
        found = command.context_class(command, info_name=name, parent=found)
    return found


def shown(words, width=100):
    done = CliRunner().invoke(main, [*words.split(), "--help"], env={"COLUMNS": str(width)})
    assert done.exit_code == 0
    return done.output


def params(words, kind):
    found = EVERY[words].get_params(context(words))
    return [param for param in found if isinstance(param, kind) and not getattr(param, "hidden", 0)]


def test_every_command_is_walked():
    assert {"", "infer", "data", "weights convert", "completion"} <= set(EVERY)


@each
def test_helps_are_whole_sentences(words):
    command = EVERY[words]
    assert isinstance(command, (Command, Commands)), "give its decorator cls=Command or Commands"
    first, *_ = (command.help or "").split("\n\n")
    assert SENTENCE.fullmatch(" ".join(first.split())), command.help
    for option in params(words, click.Option):
        assert SENTENCE.fullmatch(option.help or ""), (option.name, option.help)
    for argument in params(words, click.Argument):
        assert isinstance(argument, Argument), f"{argument.name}: give it cls=Argument"
        assert SENTENCE.fullmatch(argument.explained), (argument.name, argument.explained)


@each
def test_options_stand_under_headings(words):
    options = params(words, click.Option)
    groups = grouped(options)
    assert sorted(o.opts for group in groups.values() for o in group) == sorted(
        option.opts for option in options
    )
    if list(groups) != [ALL]:
        assert list(groups) == [name for name in (*HEADINGS, OTHER) if name in groups]
        left = [option.opts for option in groups[OTHER]]
        assert len(left) == 1 and "--help" in left[0], "give it a place in HEADINGS"
    sections = re.findall(r"^(\w.*):$", shown(words), re.MULTILINE)
    assert [name for name in sections if name in groups] == list(groups)


def test_the_large_commands_have_headings():
    for words in ("infer", "profile", "compare", "conv"):
        assert set(HEADINGS) <= set(grouped(params(words, click.Option)))


@each
def test_a_default_is_said_once_and_the_same_way(words):
    ctx, text = context(words), " ".join(shown(words).split())
    options = params(words, click.Option)
    assert [option.name for option in options if "default" in option.help.lower()] == []
    said = [default_of(option, ctx) for option in options]
    expected = [f"[default: {default}]" for default in said if default is not None]
    assert sorted(re.findall(r"\[default: [^\]]*\]", text)) == sorted(expected)
    assert "[default: False]" not in text and "[default: None]" not in text
    for option in options:  # a number or a name that stands in is not kept secret
        if not option.is_flag and option.default and not option.multiple:
            assert default_of(option, ctx) is not None or not isinstance(option.default, (int, str))


@pytest.mark.parametrize("width", [44, 60, 80, 120])
def test_help_fits_and_shows_every_option(width):
    for words in EVERY:
        text = shown(words, width)
        assert max(map(len, text.splitlines())) <= width, words
        assert "..." not in re.sub(r"\[?[A-Z]+\]?\.\.\.", "", text), words
        for option in params(words, click.Option):
            assert re.search(rf"^ +.*{re.escape(option.opts[-1])}\b", text, re.MULTILINE), words
        for name in getattr(EVERY[words], "commands", {}):
            assert re.search(rf"^  {name}\b", text, re.MULTILINE)


def test_help_says_defaults_that_the_commands_have():
    text = " ".join(shown("infer").split())
    assert "Images in one pass at most. [default: 10000]" in text
    assert "Named plan: a variant for every stage. [default: auto]" in text
    assert "[default: 0.2]" not in text and "[default: 20]" in shown("compare")
