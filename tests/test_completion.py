"""Shell completion: its lists, and bash using them."""

import os
import shutil
import subprocess
import sys

import click
import pytest
from click.shell_completion import ZshComplete
from conftest import ROOT
from terminal import run, surroundings

from lenetgpu.cli import main
from lenetgpu.plan import ALIASES, AUTO, NAMED
from lenetgpu.stages.registry import choices


def completed(line, incomplete=""):
    """Return the words that zsh receives for the next word after `line`."""
    shell = ZshComplete(main, {}, "lenetgpu", "_LENETGPU_COMPLETE")
    return [item.value for item in shell.get_completions(line.split(), incomplete)]


def test_completion_lists_plans_of_the_device():
    assert completed("infer --plan") == [AUTO, *NAMED]
    assert not set(completed("infer --plan")) & set(ALIASES)
    assert "course" not in completed("profile --device cpu --plan")
    assert "serial" not in completed("infer --device cuda:1 --plan")


def test_completion_lists_registered_variants():
    found = completed("infer --conv2")
    assert len(found) == len(set(found))
    assert set(found) == {*choices("conv", "cpu"), *choices("conv", "cuda")}
    assert completed("infer --device cpu --fc1") == list(dict.fromkeys(choices("fc", "cpu")))


@pytest.mark.parametrize("row", (ROOT / "tests" / "completions.txt").read_text().splitlines()[1:])
def test_completion_of_other_words(row):
    line, begun, some, others = (part.strip() for part in row.split("|"))
    found = set(completed(line, begun))
    assert {*some.split()} <= found and not found & {*others.split()}
    assert all(word.startswith(begun) for word in found)


def params(command):
    for child in getattr(command, "commands", {}).values():
        yield from params(child)
    yield from command.params


def test_every_parameter_has_completion():
    """Every parameter has a list, a choice or files, except numbers, sizes and a URL."""
    known = (click.Path, click.Choice, type(click.INT), type(click.FLOAT), type(click.BOOL))
    for param in params(main):
        free = param.name in ("shape", "inputs", "mirror", "scheduler")
        if not free and not isinstance(param.type, known):
            assert param._custom_shell_complete is not None, param.name


def test_file_names_are_completed_by_the_shell():
    shell = ZshComplete(main, {}, "lenetgpu", "_LENETGPU_COMPLETE")
    for line, kind in (("infer --weights", "file"), ("data fetch-mnist", "dir")):
        (item,) = shell.get_completions(line.split(), "x")
        assert item.type == kind


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_bash_completion_script_works(tmp_path):
    command = tmp_path / "lenetgpu"
    lines = (f"#!{sys.executable}", "from lenetgpu.__main__ import main", "main()", "")
    command.write_text("\n".join(lines))
    command.chmod(0o755)
    printed = run("completion", "bash", code=0)
    asked = f"""{printed.stdout}
    COMP_WORDS=(lenetgpu infer --plan cour) COMP_CWORD=3
    _lenetgpu_completion lenetgpu; echo "${{COMPREPLY[*]}}" """
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", asked],
        env=surroundings(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("course\n", "")
