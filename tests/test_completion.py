"""Completion: what the lists hold, and that bash, zsh and fish complete with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from conftest import ROOT
from terminal import surroundings, type_into

from lenetgpu.cli import main
from lenetgpu.cli.options import FILE, STAGES
from lenetgpu.cli.shells import SHELLS
from lenetgpu.plan import ALIASES, AUTO, NAMED
from lenetgpu.stages.registry import choices


def completed(line, incomplete=""):
    """The words that zsh is given for a word after `line`."""
    shell = SHELLS["zsh"](main, {}, "lenetgpu", "_LENETGPU_COMPLETE")
    return [item.value for item in shell.get_completions(line.split(), incomplete)]


def test_plans_are_those_of_the_asked_device():
    assert completed("infer --plan") == [AUTO, *NAMED]
    assert not set(completed("infer --plan")) & set(ALIASES)
    assert "course" not in completed("profile --device cpu --plan")
    assert "serial" not in completed("infer --device cuda:1 --plan")


@pytest.mark.parametrize("stage", STAGES)
def test_a_stages_variants_come_from_the_registry(stage):
    kind = {"c": "conv", "p": "pool", "f": "fc", "a": "argmax"}[stage[0]]
    found = completed(f"infer --{stage}")
    assert len(found) == len(set(found))
    assert set(found) == {*choices(kind, "cpu"), *choices(kind, "cuda")}
    assert completed(f"infer --device cpu --{stage}") == list(dict.fromkeys(choices(kind, "cpu")))


@pytest.mark.parametrize(
    ("line", "begun", "some", "not_those"),
    [
        ("variants", "con", {"conv1", "conv", "conv1+pool1"}, {"pool1"}),
        ("compare", "", {"conv1", "argmax", "conv2+pool2", "plans"}, {"conv"}),
        ("compare --suite", "", {"course"}, {"overfeat", "report"}),
        ("conv --suite", "", {"overfeat", "pascal-single"}, {"course"}),
        ("conv --as", "h", {"h100", "h200"}, {"titanx"}),
        ("infer --precision", "", {"fp32", "fp16x3", "fp16", "int8"}, {"tf32"}),
        ("infer --device", "", {"auto", "cpu", "cuda"}, {"gpu"}),
        ("infer --transfers", "", {"device", "host"}, set()),
        ("infer --streams", "", {"auto"}, set()),
        ("compare conv2 --only", "fft,winograd.", {"fft,winograd.f2"}, {"fft,fft"}),
        ("compare plans --reference", "fp", {"fp16", "fp32"}, {"auto"}),
        ("compare fc1 --reference", "", {"tiled", "cublas.sgemm"}, {"winograd.f2"}),
        ("conv --only", "wino", {"winograd", "winograd.f4"}, {"fft"}),
        ("completion", "", {"bash", "zsh", "fish"}, {"powershell"}),
        ("weights", "", {"info", "verify", "convert"}, set()),
        ("infer", "--min", {"--min-accuracy"}, {"--plan"}),
        ("infer", "--plan=cour", {"--plan=course"}, {"course"}),
        ("infer --batch many --nosuch x --plan", "cour", {"course"}, set()),
    ],
)
def test_what_else_is_completed(line, begun, some, not_those):
    found = set(completed(line, begun))
    assert some <= found and not found & not_those
    assert all(word.startswith(begun) for word in found)


def test_every_gpu_of_the_driver_is_a_device(monkeypatch):
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: iter([folder, folder]))
    assert completed("infer --device", "cuda") == ["cuda", "cuda:0", "cuda:1"]
    monkeypatch.setenv("COMP_WORDS", "lenetgpu infer --device cuda : ")
    monkeypatch.setenv("COMP_CWORD", "4")
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    bash = SHELLS["bash"](main, {}, "lenetgpu", "_LENETGPU_COMPLETE")
    assert bash.complete() == "plain,0\nplain,1"  # bash leaves what is before the colon


def params(command):
    for child in getattr(command, "commands", {}).values():
        yield from params(child)
    yield from command.params


def test_every_word_is_completed():
    """A file, a choice or a list for each that takes one; a number, and a URL, is typed."""
    known = (click.Path, click.Choice, type(click.INT), type(click.FLOAT), type(click.BOOL))
    for param in params(main):
        if param.name not in ("shape", "mirror") and not isinstance(param.type, known):
            assert param._custom_shell_complete is not None, param.name


def test_files_are_left_to_the_shell():
    shell = SHELLS["zsh"](main, {}, "lenetgpu", "_LENETGPU_COMPLETE")
    for line in ("infer", "infer --weights", "data info", "data convert a", "compare conv1 --with"):
        (item,) = shell.get_completions(line.split(), "x")
        assert item.type == "file", line
    assert FILE.shell_complete is not None
    (folder,) = shell.get_completions(["data", "fetch-mnist"], "x")
    assert folder.type == "dir"


def test_a_name_that_is_no_one_line_is_not_offered(tmp_path, monkeypatch):
    """Shells are given a line a word."""
    monkeypatch.chdir(tmp_path)
    for name in ("a,b", "a\nb"):
        (tmp_path / name).touch()
    assert completed("infer", "--weights=a") == ["--weights=a,b"]


def test_it_imports_nothing_that_computes():
    code = (
        "import atexit, sys; sys.argv[:] = ['lenetgpu']; "
        "atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.__stderr__)); "
        "from lenetgpu.cli import main; main(prog_name='lenetgpu')"
    )
    words = {"COMP_WORDS": "lenetgpu infer --conv2 win", "COMP_CWORD": "3"}
    asked = surroundings(_LENETGPU_COMPLETE="bash_complete", **words)
    done = subprocess.run(
        [sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=True
    )
    assert "plain,winograd.f2" in done.stdout.splitlines()
    found = {name.split(".")[0] for name in done.stderr.split()}
    assert not found & {"numpy", "numba", "cupy", "rich", "h5py"}


@pytest.fixture
def shells(tmp_path):
    """A `lenetgpu` of this tree, first in the path; (environment, folder)."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "lenetgpu"
    lines = (f"#!{sys.executable}", "from lenetgpu.__main__ import main", "main()", "")
    command.write_text("\n".join(lines))
    command.chmod(0o755)
    (tmp_path / "weights-of-mine.h5").touch()
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return surroundings(
        PATH=path, HOME=str(tmp_path), ZDOTDIR=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path),
        XDG_DATA_HOME=str(tmp_path), TERM="xterm", HISTFILE="/dev/null", PS1="$ ",
    ), tmp_path  # fmt: skip


def needed(shell):
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} on this machine")
    return path


def script(shell, folder):
    printed = CliRunner().invoke(main, ["completion", shell])
    assert printed.exit_code == 0, printed.output
    path = folder / f"completion.{shell}"
    path.write_text(printed.stdout)
    return path


def ran(command, environment, folder):
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_bash(shells):
    bash, (environment, folder) = needed("bash"), shells
    asked = f"""source {script("bash", folder)}
    try() {{
        COMP_WORDS=(lenetgpu "$@") COMP_CWORD=$# COMPREPLY=()
        $(complete -p lenetgpu | sed 's/.*-F \\([^ ]*\\).*/\\1/') lenetgpu
        echo "${{COMPREPLY[*]}}"
    }}
    try inf
    try infer --plan cour
    try infer --plan = cour
    try infer --device cpu --conv2 wino
    try conv --as ''
    touch plain,zz,serial
    try compare conv2 --only '*,serial'
    try nosuch --nosuch '"'"""
    found = ran([bash, "--norc", "--noprofile", "-c", asked], environment, folder)
    assert found[:3] == ["infer", "course", "course"]
    assert found[3:5] == ["winograd winograd.blocked", "gtx1080ti titanx h100 h200"]
    assert found[5] == "*,serial *,serial.loops"


def test_bash_in_a_terminal(shells):
    bash, (environment, folder) = needed("bash"), shells
    keys = [
        (f"cd {folder}; source {script('bash', folder)}; echo re''ady\n", "ready"),
        ("lenetgpu infer --plan=cour\t", "--plan=course "),
        ("\x15lenetgpu infer --weights weights-\t", "weights-of-mine.h5 "),
        ("\x15exit\n", "exit"),
    ]
    type_into([bash, "--norc", "--noprofile", "-i"], environment, keys)


def test_zsh_in_a_terminal(shells):
    zsh, (environment, folder) = needed("zsh"), shells
    ready = f"cd {folder}; autoload -Uz compinit; compinit -D; source {script('zsh', folder)}"
    keys = [
        (f"{ready}; echo re''ady\n", "ready"),
        ("lenetgpu infer --plan cour\t", "--plan course "),
        ("\x15lenetgpu infer --plan=cour\t", "--plan=course "),
        ("\x15lenetgpu infer --conv2 winograd.blo\t", "winograd.blocked "),
        ("\x15lenetgpu infer --weights weights-\t", "weights-of-mine.h5 "),
        ("\x15lenetgpu infer --weights=weights-\t", "--weights=weights-of-mine.h5 "),
        ("\x15exit\n", "exit"),
    ]
    type_into([zsh, "-f", "-i"], environment, keys)


def test_fish(shells):
    fish, (environment, folder) = needed("fish"), shells
    lines = (
        "infer --plan cour", "infer --plan=cour", "infer --conv2 winograd.b", "conv --as titan",
        "infer --weights weights-", "infer --weights=weights-", "variants argm", "comple",
        "compare conv2 --only serial,serial", "infer --weights=a,",
    )  # fmt: skip
    (folder / "a,plain.h5").touch()
    asked = [f"source {script('fish', folder)}"]
    asked += [f'complete -C"lenetgpu {line}"; echo end' for line in lines]
    found = "\n".join(ran([fish, "-c", "; ".join(asked)], environment, folder)).split("end")
    words = [[line.partition("\t")[0] for line in part.split("\n") if line] for part in found]
    assert words == [
        ["course"], ["--plan=course"], ["winograd.blocked"], ["titanx"], ["weights-of-mine.h5"],
        ["--weights=weights-of-mine.h5"], ["argmax"], ["completion"],
        ["serial,serial", "serial,serial.loops"], ["--weights=a,plain.h5"], [],
    ]  # fmt: skip
    assert "titanx\tGTX Titan X" in found[3]


def test_what_goes_wrong_is_not_said_while_somebody_types(shells):
    bash, (environment, folder) = needed("bash"), shells
    environment["PYTHONPATH"] = f"{folder}{os.pathsep}{ROOT}"
    (folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if '_LENETGPU_COMPLETE' in os.environ:\n    sys.modules['lenetgpu.plan'] = None\n"
    )
    asked = f"source {script('bash', folder)}; COMP_WORDS=(lenetgpu infer --plan '') COMP_CWORD=3"
    last = "_lenetgpu_completion lenetgpu; echo ${#COMPREPLY[*]}"
    assert ran([bash, "--norc", "-c", f"{asked}; {last}"], environment, folder) == ["0"]
