"""Messages of a command for hostile arguments and streams: one safe line, and an exit code."""

import os
import re
import subprocess
import sys
import unicodedata

import h5py
import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from terminal import refused, run

from lenetgpu import __main__ as entry
from lenetgpu.errors import LenetError, one_line
from lenetgpu.files import assets
from lenetgpu.lab.console import Console
from lenetgpu.lab.tables import Column, Table

HOSTILE = {
    "escape": "a\x1b[31mred\x1b]0;title\x07",
    "lines": "a\nlenetgpu: right\r\nb\x0b\x0c\x85\u2028\u2029",
    "bidi": "a\u202egnp.5h\u2066\u200f",
    "unseen": "a\u200b\u00ad\ufeff\u2060b",
    "8-bit control": "a\x9b31m\x90",
    "surrogate": "a\udcffb",
    "markup": "a[/b][bold red]x[/][link=file:///etc/passwd]",
    "tab and backspace": "a\tb\x08\x08c",
}
HOSTILE_TEXT = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


def safe(output):
    """Return True if a terminal prints every line unchanged."""
    return all(line.isprintable() for line in output.split("\n"))


@HOSTILE_TEXT
def test_one_line_is_printable(text):
    shown = one_line(text)
    assert shown.isprintable()
    assert one_line(shown) == shown
    assert str(LenetError(text)) == shown
    if text.isprintable():
        assert shown == text
    else:
        assert "\\" in shown and shown != text


@given(st.text(max_size=3_000) | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl"])))
def test_any_text_becomes_one_short_line(text):
    shown = one_line(text)
    assert shown.isprintable() and len(shown) <= 2_000
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode()


def test_long_names_and_lines_are_cut_in_the_middle():
    name = "x" * 300
    assert one_line(f"a {name} b") == f"a {name} b"
    found = one_line(f"begin-{'x' * 70_000}-end: expected")
    assert found.startswith("begin-x") and found.endswith("-end: expected")
    assert "...(69,751 characters)..." in found and len(found) < 320
    sentence = "word " * 20_000 + "found nothing"
    assert len(one_line(sentence)) <= 2_000 and one_line(sentence).endswith("found nothing")


@HOSTILE_TEXT
def test_file_names_are_escaped(text, tmp_path):
    name = tmp_path / text.replace("/", "|")
    refused(run("infer", name), "found no such file")
    for words in (["data", "info"], ["weights", "info"], ["infer", "--weights"]):
        refused(run(*words, name))
    refused(run("infer", "--output", name), "expected a name ending in")
    refused(run("compare", "fc2", "--with", name), "found no such file")
    found = tmp_path / f"{name.name}.h5"
    found.write_bytes(assets.default_digits().read_bytes())
    result = run("data", "info", found)
    assert result.exit_code == 0 and safe(result.output)
    assert one_line(found) in result.output
    result = run("infer", found, "--limit", 3, "--device", "cpu")
    assert result.exit_code == 0 and safe(result.output)
    assert one_line(found) in result.output


@HOSTILE_TEXT
def test_file_contents_are_escaped(text, tmp_path, weight_file):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file[text.replace("/", "|") if "\udcff" not in text else "a"] = np.ones(3, "f4")
    refused(run("data", "info", path))
    refused(run("weights", "info", path), "and nothing else, found")
    with h5py.File(weight_file, "a") as file:
        file.attrs[text.replace("\udcff", "")] = text.replace("\udcff", "")
        file.attrs["bytes"] = np.void(text.encode(errors="surrogateescape"))
        file.attrs["long"] = "word " * 10_000
    result = run("weights", "info", weight_file, code=0)
    assert safe(result.output)
    assert max(map(len, result.output.splitlines())) <= 2_000


@HOSTILE_TEXT
def test_command_line_words_are_escaped(text):
    """With several files, each bad one has a line, and an error follows."""
    for words in ("infer --plan", "infer --device", "infer --limit", "variants", "conv", ""):
        refused(run(*words.split(), text))
    refused(run("infer", f"--{text}"))
    result = run("infer", "a", "b", text)
    assert result.exit_code == 2 and safe(result.output)
    *each, last = result.stderr.splitlines()
    assert len(each) == 3 and all(line.startswith("lenetgpu: ") for line in each)
    assert any(one_line(text) in line for line in each) and last.startswith("lenetgpu: error: ")


@HOSTILE_TEXT
def test_environment_is_escaped(text, tmp_path, monkeypatch):
    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path / text.replace("/", "|")))
    monkeypatch.setenv("LENETGPU_COMMIT", text)
    result = run("doctor")
    assert result.exit_code == 0 and safe(result.output)


@HOSTILE_TEXT
def test_tables_and_lines_are_escaped(text, capsys):
    columns = Column("name", "name", numeric=False), Column("why", "why"), Column("ms", "ms")
    rows = [{"name": text, "why": [text, "b"], "ms": 1.5}]
    Console().print(Table(columns, rows, text).rich())
    Console().print(text)
    Console().print("", bold=text)
    assert safe(capsys.readouterr().out)
    assert safe(Table(columns, rows).csv()) and safe(Table(columns, rows).markdown())
    assert ",1.5\n" in Table(columns, rows).csv()


# commands that end soon, whatever becomes of their output
QUICK = (
    ["--help"], ["--version"], ["infer", "--help"], ["data", "--help"], ["variants", "conv1"],
    ["doctor", "--json"], ["completion", "bash"], ["data", "info"],
    ["infer", "--limit", "3", "--timing", "--device", "cpu"],
)  # fmt: skip
PLAIN = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
NO_ROOM = (
    "lenetgpu: error: stdout: expected space for the results, found: No space left on device\n"
)
CLOSED = "lenetgpu: error: stdout: expected an open stream for the results, found a closed one\n"
full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


def process(words, shell='exec "$@"', **how):
    """Run `lenetgpu WORDS` in a process of its own, started by a line of sh."""
    command = ["sh", "-c", shell, "sh", sys.executable, "-m", "lenetgpu", *words]
    environment = PLAIN | {"PYTHONPATH": str(ROOT)} | how.pop("env", {})
    given = {"stdout": subprocess.PIPE, "cwd": ROOT} | how
    return subprocess.run(
        command, stderr=subprocess.PIPE, text=True, env=environment, check=False, **given
    )


@full
@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_full_stdout_is_one_sentence(words):
    done = process(words, 'exec "$@" > /dev/full')
    assert (done.returncode, done.stderr) == (2, NO_ROOM)


@pytest.mark.parametrize("words", [*QUICK[:3], QUICK[-1]], ids=" ".join)
def test_closed_stdout_is_one_sentence(words):
    done = process(words, 'exec "$@" >&-')
    assert (done.returncode, done.stderr) == (2, CLOSED)


@pytest.mark.parametrize("words", [QUICK[0], QUICK[4], QUICK[-1]], ids=" ".join)
def test_broken_pipe_ends_quietly(words):
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = process(words, stdout=writes)
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (141, "")


@full
def test_unwritable_stderr_keeps_the_exit_code():
    for shell in ('exec "$@" 2> /dev/full', 'exec "$@" 2>&-'):
        assert process(["nosuch"], shell).returncode == 2
        assert process(["infer", "none.h5"], shell).returncode == 2


def test_closed_stdin_is_not_needed():
    done = process(["infer", "--limit", "3", "--device", "cpu"], 'exec "$@" <&-')
    assert (done.returncode, done.stderr) == (0, "")


def test_deleted_working_directory(tmp_path):
    words = ["infer", "--limit", "3", "--device", "cpu"]
    gone = 'mkdir gone && cd gone && rmdir "$PWD" && exec "$@"'
    done = process(words, gone, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = process([*words, "--json", "out.json"], gone, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("lenetgpu: error: ") and done.stderr.count("\n") == 1


def test_stdout_encoding_without_unicode(tmp_path):
    made = tmp_path / "ä€\x1b.h5"
    made.write_bytes(assets.default_digits().read_bytes())
    commands = ["data", "info", str(made)], ["infer", str(made), "--limit", "3", "--device", "cpu"]
    for words, encoding in zip(commands, ("latin-1", "ascii:strict"), strict=True):
        done = process(words, env={"PYTHONIOENCODING": encoding}, encoding="latin-1")
        assert done.returncode == 0, done.stderr
        assert "\\u20ac\\x1b.h5" in done.stdout
    missing = process(
        ["data", "info", "ä\x1b"],
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1
    assert "\\x1b" in missing.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(13, "Permission denied", "/a\x1b/b"), "/a\\x1b/b: expected a file that can be"),
        (OSError(2, "No usable temporary directory found"), "system error: No usable"),
        (OSError(28, "No space left on device"), "stdout: expected space for the results"),
        (OSError("odd\nwords"), "system error: odd\\nwords"),
        (OSError(), "system error: OSError"),
        (PermissionError(1, "no", b"/x"), "/x: expected a file that can be used, found: no"),
    ],
)
def test_system_errors_are_one_sentence(error, words, monkeypatch):
    def refuse(*_):
        raise error

    monkeypatch.setattr("lenetgpu.lab.doctor.findings", refuse)
    refused(run("doctor"), words)


def test_internal_error_has_traceback_and_instructions(monkeypatch, capsys):
    def fail():
        raise KeyError("a\x1b[31m\nb")

    monkeypatch.setattr("lenetgpu.cli.main", fail)
    monkeypatch.setattr(sys, "argv", ["lenetgpu"])
    with pytest.raises(SystemExit) as end:
        entry.main()
    said = capsys.readouterr().err
    assert end.value.code == 1 and safe(said)
    assert said.startswith("Traceback") and re.search(r"KeyError: .*x1b", said)
    assert said.splitlines()[-1].startswith(
        "lenetgpu: this is a mistake in lenetgpu: please report"
    )


def test_group_without_a_command_shows_its_help():
    for words in ([], ["data"], ["weights"]):
        result = run(*words)
        assert result.exit_code == 2 and "Commands:\n" in result.output
