"""Whole runs beside a cache that is damaged or not to be had, and the doctor who empties it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import ROOT
from test_poisoned_caches import ANOTHER, NEEDS_ROOT, POISONS

from lenetgpu.cache import folder
from lenetgpu.cli import main

RUN = "import sys; from lenetgpu.__main__ import main; sys.argv[0] = 'lenetgpu'; main()"
NO_USER = "import pwd\ndef unknown(uid): raise KeyError(uid)\npwd.getpwuid = unknown\n" + RUN
FAR = ("gone", "another's", "a folder")


def infer(code=RUN, plan="tiled", **environment):
    """(labels, lines on stderr) of a process of its own; None takes a variable away."""
    asked = dict(os.environ) | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run(
        [sys.executable, "-c", code, "infer", "--device", "cpu", "--plan", plan, "--limit", "20",
         "--min-accuracy", "0.9", "--output", "labels.json"],
        env={name: value for name, value in asked.items() if value is not None},
        cwd=environment["HERE"], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    labels = json.loads((Path(environment["HERE"]) / "labels.json").read_text())
    return labels, done.stderr.splitlines()


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """(a cache folder that a run has filled, that run's labels)."""
    here = tmp_path_factory.mktemp("filled")
    labels, said = infer(HERE=str(here), LENETGPU_CACHE=str(here / "cache"))
    assert said == []
    return here / "cache", labels


@pytest.fixture
def cache(filled, tmp_path, monkeypatch):
    where = tmp_path / "cache"
    shutil.copytree(filled[0], where)
    monkeypatch.setenv("LENETGPU_CACHE", str(where))
    folder.told.cache_clear()
    yield where
    folder.told.cache_clear()


def kept(cache):
    return sorted(cache.glob("*/*.kept"))


def test_a_run_takes_none_of_many_poisoned_entries(filled, cache, tmp_path):
    """Each entry is poisoned in another way."""
    ways = [poison for name, poison in POISONS.items() if name not in FAR]
    paths = kept(cache)
    assert {path.parent.name for path in paths} >= {"cpu", "numba", "fits"}
    for number, path in enumerate(paths):
        room = tmp_path / str(number)
        room.mkdir()
        ways[5 * number % len(ways)](path, room)
    asked = {"HERE": str(tmp_path), "LENETGPU_CACHE": str(cache)}
    labels, said = infer(**asked)
    assert labels == filled[1] and len(said) == 1 and said[0].startswith("lenetgpu: cache: ")
    assert infer(**asked) == (filled[1], [])
    assert not list(tmp_path.glob("*/marker")) and kept(cache) == paths


NOWHERE = {"LENETGPU_CACHE": None, "XDG_CACHE_HOME": None}


@pytest.mark.parametrize(
    ("code", "environment"),
    [
        (NO_USER, NOWHERE | {"HOME": None}),
        (RUN, NOWHERE | {"HOME": "/proc"}),
        (RUN, NOWHERE | {"HOME": "/dev/null"}),
        (RUN, {"LENETGPU_CACHE": "."}),
    ],
    ids=["no home and no user", "a home that none writes", "a home that is a device",
          "a folder that all write"],
)  # fmt: skip
def test_a_run_without_a_place_to_keep_things_is_right(code, environment, filled, tmp_path):
    tmp_path.chmod(0o777)
    labels, said = infer(code, "unrolled", HERE=str(tmp_path), **environment)
    assert labels == filled[1] and len(said) == 1 and said[0].startswith("lenetgpu: cache: ")
    assert [path.name for path in tmp_path.iterdir()] == ["labels.json"]


def doctor(*words):
    return CliRunner().invoke(main, ["doctor", *words])


def test_the_doctor_counts_what_is_kept_and_names_what_is_damaged(cache):
    paths = kept(cache)
    row = next(line for line in doctor().output.splitlines() if line.startswith("kernel cache"))
    folders = ("nvrtc", "cpu", "numba", "fits")
    counts = {kind: len(list((cache / kind).glob("*.kept"))) for kind in folders}
    counts = {kind: count for kind, count in counts.items() if count}
    assert row.endswith(f"{cache}, " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
    assert "damaged" not in doctor().output
    paths[0].write_bytes(b"")
    (cache / "numba").chmod(0o777)
    row = next(line for line in doctor().output.splitlines() if line.startswith("damaged"))
    name = f"{paths[0].parent.name}/{paths[0].name.removesuffix('.kept')}"
    assert f"{name}: expected an entry of format 1, found an empty file" in row
    assert f"{cache / 'numba'}: expected a folder that others cannot write, found mode 0777" in row
    assert "damaged" in json.loads(doctor("--json").output)
    assert doctor("--repair").exit_code == 0
    assert "damaged" not in doctor().output and "kernel cache  " in doctor().output


def test_the_doctor_removes_what_is_kept_and_nothing_else(cache, tmp_path):
    target, strange, nested = tmp_path / "target", cache / "numba" / "notes", cache / "mine"
    for path in (target, strange, nested):
        path.write_text("not an entry")
    (cache / "fits" / "link.kept").symlink_to(target)
    (cache / "auto").symlink_to(tmp_path)
    (cache / "cpu-0.o").write_text("of an earlier version")
    full = cache / "cpu" / "folder.kept"
    full.mkdir()
    (full / "mine").write_text("not an entry")
    counts = {kind: len(list((cache / kind).glob("*.kept"))) for kind in ("cpu", "numba", "fits")}
    cache.chmod(0o777)
    result = doctor("--repair")
    assert result.exit_code == 0, result.output
    first, *left = result.output.splitlines()
    assert first.startswith(f"removed from {cache}: {counts['cpu'] - 1} cpu, ")
    assert f"{counts['numba']} numba" in first and f"{counts['fits']} fits" in first
    assert sorted(left) == [
        f"left: {full}: Directory not empty",
        f"left: {strange}: no name of an entry",
    ]
    assert {path for path in cache.rglob("*") if path.is_file()} == {strange, nested, full / "mine"}
    assert target.read_text() == "not an entry" and not (cache / "auto").is_symlink()
    assert cache.stat().st_mode & 0o777 == 0o755
    assert "nothing" in doctor("--repair").output


@NEEDS_ROOT
def test_the_doctor_leaves_what_is_anothers(cache):
    paths = kept(cache)
    os.chown(paths[0], ANOTHER, -1)
    found = doctor("--repair").output
    assert f"left: {paths[0]}: expected an owner of number 0, found {ANOTHER}" in found
    assert kept(cache) == paths[:1]
    os.chown(cache, ANOTHER, -1)
    refused = doctor("--repair")
    assert refused.exit_code == 2 and "found 65534; nothing is removed" in refused.output
    assert kept(cache) == paths[:1]


def test_the_doctor_follows_no_link(cache, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(cache)
    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path / "link"))
    before = kept(cache)
    refused = doctor("--repair")
    assert refused.exit_code == 2
    assert "expected a folder, found a link; nothing is removed" in refused.output
    assert kept(cache) == before


def test_the_doctor_does_one_thing_at_a_time():
    refused = doctor("--repair", "--json")
    assert refused.exit_code == 2 and "expected one of --repair and --json" in refused.output


def test_the_doctor_leaves_a_shared_folder_and_strangers_files(tmp_path, monkeypatch):
    """A folder that several users share is not closed to them, and only what is ours goes."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("LENETGPU_CACHE", str(shared))
    done = doctor("--repair")
    assert done.exit_code == 2 and "several share" in done.output
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777
    own = tmp_path / "own"
    for name in ("auto/config.json", "schedule/week.json", "cpu-mine.o"):
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text("a user's")
    monkeypatch.setenv("LENETGPU_CACHE", str(own))
    assert doctor("--repair").exit_code == 0
    assert (own / "auto/config.json").exists() and (own / "schedule/week.json").exists()
    assert (own / "cpu-mine.o").exists()
