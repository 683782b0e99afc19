"""`lenetgpu classify` of pictures: a list of them, a row each, labels as `infer` gives them."""

from __future__ import annotations

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT
from PIL import Image

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.files.assets import default_digits
from lenetgpu.files.folders import below, matching
from lenetgpu.files.source import open_source
from lenetgpu.jobs import inputs, manifest, pictures, worker
from lenetgpu.jobs.inputs import gather
from lenetgpu.jobs.pictures import LIST, Listing, difference, digest
from lenetgpu.pictures import given, read
from lenetgpu.pictures.given import meant

CPU = ("--device", "cpu", "--plan", "fp32", "--no-progress")
ODD = 'a, "b"\n.png', "=1+1 é.png", os.fsdecode(b"\xff.png")


@pytest.fixture(scope="module")
def digits():
    with open_source(default_digits(), limit=60) as source:
        return source.whole().images


def draw(path, digit):
    Image.fromarray(255 - digit[..., 0]).save(path)


@pytest.fixture
def scans(tmp_path, digits):
    """Twenty pictures, dark on light, some in a folder of their own, three with odd names."""
    folder = tmp_path / "scans"
    (folder / "more").mkdir(parents=True)
    for number in range(17):
        draw(folder / ("more" if number % 3 == 0 else "") / f"{number:02}.png", digits[number])
    for number, name in enumerate(ODD, 17):
        draw(folder / name, digits[number])
    return folder


def run(*words, code=0):
    done = CliRunner().invoke(main, ["classify", *map(str, words), *CPU])
    assert done.exit_code == code, done.output
    return done


def infer(*words):
    done = CliRunner().invoke(main, ["infer", *map(str, words), *CPU])
    assert done.exit_code in (0, 1), done.output


def parts(out):
    return {path.name: path.read_bytes() for path in sorted(out.glob("part-*"))}


def labels(out):
    return np.concatenate([np.load(path) for path in sorted(out.glob("part-*.npy"))])


def table(folder):
    paths = [folder] if folder.is_file() else sorted(folder.glob("part-*.csv"))
    return [row for path in paths for row in csv.DictReader(path.open(newline=""))]


# what a job gives


@pytest.mark.parametrize("as_is", [(), ("--as-is",)], ids=["prepared", "as it is"])
def test_labels_and_names_are_infers(tmp_path, scans, as_is):
    out, truth = tmp_path / "out", tmp_path / "truth.csv"
    said = run(scans, "--out", out, "--shard", 7, "--form", "csv", "--scores", *as_is).stdout
    infer(scans, "--output", truth, "--scores", *as_is)
    assert "20 pictures, 3 shards of at most 7" in said and "no label" not in said
    ours = table(out)
    assert all(row.pop("error") == "" for row in ours)
    assert ours == table(truth)
    assert len({row["label"] for row in ours}) > 1


def test_the_list_has_all_and_the_manifest_one_line_for_them(tmp_path, scans):
    out = tmp_path / "out"
    run(scans, "--out", out, "--shard", 7)
    listed = (out / LIST).read_bytes()
    names = [path for *_, path in pictures.records(listed)]
    assert names == list(below(str(scans))) and len(names) == 20
    (entry,) = json.loads((out / "manifest.json").read_text().splitlines()[0])["job"]["inputs"]
    assert entry["fingerprint"] == digest(listed) and entry["images"] == 20
    rows = manifest.read(out).done.values()
    assert {row.hash for row in rows} == {digest(listed)}


@pytest.fixture
def bad(scans):
    """Places of the two pictures of `scans` that have no label, and their sentences."""
    (scans / "10.png").write_bytes((scans / "10.png").read_bytes()[:-20])
    Image.new("L", (40, 40), 200).save(scans / "11.png")
    names = list(below(str(scans)))
    places = [names.index(str(scans / name)) for name in ("10.png", "11.png")]
    return places, ["Truncated File Read", "found a blank picture"]


def test_a_picture_without_a_label_is_a_row_and_the_others_go_on(tmp_path, scans, bad):
    places, why = bad
    out, truth = tmp_path / "out", tmp_path / "truth.json"
    done = run(scans, "--out", out, "--shard", 3, code=1)
    infer(scans, "--output", truth)
    found = labels(out)
    assert np.flatnonzero(found == -1).tolist() == places
    assert found[found >= 0].tolist() == json.loads(truth.read_text())["labels"]
    assert "no label 2 of them" in done.stdout and all(part in done.stdout for part in why)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["no_label"] == 2 and sum(summary["counts"]) == 18
    assert all(part in said for part, said in zip(why, summary["no_label_why"], strict=True))
    assert sum(row.bad for row in manifest.read(out).done.values()) == 2
    before = parts(out), (out / "manifest.json").read_bytes()
    again = run(scans, "--out", out, "--shard", 3, code=1).stdout
    assert "no label 2 of them" in again and all(part in again for part in why)
    assert "elapsed" not in again
    assert (parts(out), (out / "manifest.json").read_bytes()) == before


def test_how_each_form_says_that_there_is_no_label(tmp_path, scans, bad, monkeypatch):
    monkeypatch.setattr(worker, "AT_ONCE", 4)
    places, why = bad
    for form in ("npy", "h5", "csv", "json"):
        run(scans, "--out", tmp_path / form, "--form", form, "--scores", code=1)
    rows = np.load(tmp_path / "npy" / "part-000000.npy")
    found, sums = rows["label"], rows["scores"]
    assert (found[places] == -1).all()
    assert np.isnan(sums).all(axis=1).nonzero()[0].tolist() == places
    with h5py.File(tmp_path / "h5" / "part-000000.h5") as file:
        assert file["labels"][...].tolist() == found.tolist()
    document = json.loads((tmp_path / "json" / "part-000000.json").read_text())
    lines = table(tmp_path / "csv")
    for place, line in enumerate(lines):
        missing = place in places
        assert len(line) == 14 and None not in line
        assert (line["label"] == "") == missing == (document["labels"][place] is None)
        assert (line["error"] != "") == missing == (document["errors"][place] is not None)
        assert (line["score9"] == "") == missing == (document["scores"][place][9] is None)
    for place, part in zip(places, why, strict=True):
        assert part in lines[place]["error"] and part in document["errors"][place]


def test_parquet_has_null_and_the_sentence(tmp_path, scans, bad, monkeypatch):
    monkeypatch.setattr(worker, "AT_ONCE", 4)
    dataset = pytest.importorskip("pyarrow.dataset", reason="no pyarrow")
    places, why = bad
    out = tmp_path / "out"
    run(scans, "--out", out, "--form", "parquet", "--shard", 6, "--scores", code=1)
    files = [str(path) for path in sorted(out.glob("part-*"))]
    found = dataset.dataset(files).to_table().to_pydict()
    assert found["index"] == list(range(20)) and len(set(found["file"])) == 20
    for place in range(20):
        missing = place in places
        assert (found["label"][place] is None) == missing == (found["score3"][place] is None)
        assert (found["error"][place] is not None) == missing
    assert why[0] in found["error"][places[0]] and why[1] in found["error"][places[1]]


def test_only_the_first_sentences_are_kept(tmp_path):
    folder, out = tmp_path / "blank", tmp_path / "out"
    folder.mkdir()
    for number in range(40):
        Image.new("L", (40, 40), 200).save(folder / f"{number:02}.png")
    said = run(folder, "--out", out, "--shard", 10, code=1).stdout
    assert "no label 40 of them, as" in said and said.count("blank picture") == 10
    assert {len(row.said) for row in manifest.read(out).done.values()} == {3}
    assert labels(out).tolist() == [-1] * 40


# a job that goes on


def test_a_restart_after_lines_were_lost_gives_the_same_bytes(tmp_path, scans, bad):
    out = tmp_path / "out"
    run(scans, "--out", out, "--shard", 3, code=1)
    whole = parts(out)
    lines = (out / "manifest.json").read_text().splitlines(keepends=True)
    (out / "manifest.json").write_text("".join(lines[:3]))
    (out / "part-000000.npy").unlink()
    kept = (out / "part-000001.npy").stat().st_mtime_ns
    run(scans, "--out", out, "--shard", 3, code=1)
    assert parts(out) == whole and (out / "part-000001.npy").stat().st_mtime_ns == kept
    assert json.loads((out / "summary.json").read_text())["this_run"]["shards"] == 6


def start(cwd, *words):
    command = [sys.executable, "-m", "lenetgpu", "classify", *map(str, words), *CPU]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, cwd=cwd, stdout=pipe, stderr=pipe)


@pytest.mark.slow
def test_a_kill_in_the_middle(tmp_path, scans):
    whole, out = tmp_path / "whole", tmp_path / "out"
    run(scans, "--out", whole, "--shard", 1, "--form", "csv")
    process = start(tmp_path, "scans", "--out", "out", "--shard", 1, "--form", "csv")
    end = time.monotonic() + 60
    while len(list(out.glob("part-*")) if out.is_dir() else ()) < 3 and time.monotonic() < end:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    run(scans, "--out", out, "--shard", 1, "--form", "csv")
    assert parts(out) == parts(whole) and sorted(manifest.read(out).done) == list(range(20))


def change(path):
    facts = path.stat()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda scans: (scans / "04.png").unlink(), "found that {0}/04.png is not among them now"),
        (lambda scans: (scans / "more" / "00a.png").write_bytes(b"x"), "another one, {0}/more/00a"),
    ],
    ids=["removed", "added"],
)
def test_other_pictures_between_two_starts(tmp_path, scans, act, sentence):
    out = tmp_path / "out"
    run(scans, "--out", out, "--shard", 3)
    lines = (out / "manifest.json").read_text().splitlines(keepends=True)
    (out / "manifest.json").write_text("".join(lines[:-1]))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    act(scans)
    said = run(scans, "--out", out, "--shard", 3, code=2).stderr
    assert sentence.format(scans) in said and said.count("\n") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_damaged_list_is_made_anew(tmp_path, scans):
    out = tmp_path / "out"
    run(scans, "--out", out, "--shard", 3)
    whole, listed = parts(out), (out / LIST).read_bytes()
    (out / "part-000002.npy").unlink()
    (out / LIST).unlink()
    (out / LIST).write_bytes(listed.replace(b"04.png", b"05.png"))
    run(scans, "--out", out, "--shard", 3)
    assert (parts(out), (out / LIST).read_bytes()) == (whole, listed)


def test_a_picture_that_changes_while_the_job_runs_sets_its_shard_aside(
    tmp_path, scans, monkeypatch
):
    out, begin = tmp_path / "out", manifest.begin

    def begun(*words):
        begin(*words)
        change(scans / "04.png")

    monkeypatch.setattr(manifest, "begin", begun)
    done = run(scans, "--out", out, "--shard", 5, "--tries", 1, code=1)
    assert "set aside" in done.stderr and "04.png: expected the picture" in done.stderr
    assert "found it changed since" in done.stderr and len(manifest.read(out).done) == 3


def test_what_may_pass_is_tried_again_and_is_no_row_without_a_label(tmp_path, scans, monkeypatch):
    real, left = read.read_whole, [2]

    def fails(path, *words):
        if path.name == "04.png" and left[0]:
            left[0] -= 1
            error = OSError(errno.EIO, "Input/output error")
            raise LenetError(f"{path}: Input/output error") from error
        return real(path, *words)

    monkeypatch.setattr(read, "read_whole", fails)
    out = tmp_path / "out"
    run(scans, "--out", out, "--shard", 5, "--tries", 3)
    assert left == [0] and (labels(out) >= 0).all()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(("--as-is",), "with pictures as they are False, found pictures as they are True")],
)
def test_another_job_in_the_folder_is_refused(tmp_path, scans, words, sentence):
    out = tmp_path / "out"
    run(scans, "--out", out)
    assert sentence in run(scans, "--out", out, *words, code=2).stderr


# what is no such job


def test_mixed_kinds_are_one_sentence_and_nothing_is_written(tmp_path, scans, digits):
    np.save(tmp_path / "a.npy", digits)
    np.save(scans / "more" / "b.npy", digits)
    out = tmp_path / "out"
    picture, array = scans / "01.png", tmp_path / "a.npy"
    for words, sentence in (
        ((picture, array), f"a.npy: expected pictures only, as {picture} in the same job, found "
                           "images in npy form"),
        ((array, picture), f"01.png: expected files of many images only, as {array} in the same "
                           "job, found a picture"),
        ((scans,), "more/b.npy: expected pictures only"),
        ((tmp_path / "*.npy", picture), "01.png: expected files of many images only"),
    ):  # fmt: skip
        said = run(*words, "--out", out, code=2).stderr
        assert sentence in said and said.count("\n") == 1 and not out.exists()


def test_other_files_in_a_folder_are_said_and_the_pictures_done(tmp_path, scans):
    out = tmp_path / "out"
    for number in range(12):
        (scans / f"{number}.txt").write_text("hello")
    (scans / "gone.png").symlink_to("nothing")
    os.mkfifo(scans / "pipe.png")
    (scans / "unnamed").write_bytes((scans / "01.png").read_bytes())
    (scans / ".hidden.png").write_bytes(b"x")
    done = run(scans, "--out", out, code=1)
    assert "21 pictures" in done.stdout and "no label" not in done.stdout
    assert "0.txt: expected a picture" in done.stderr and "4 more files" in done.stderr
    assert done.stderr.count("\n") == 11
    summary = json.loads((out / "summary.json").read_text())
    assert summary["unreadable_files"] == len(summary["unreadable"]) == 14
    why = {bad["path"].rpartition("/")[2]: bad["why"] for bad in summary["unreadable"]}
    assert "No such file" in why["gone.png"] and "a device or a pipe" in why["pipe.png"]
    assert "5 bytes of another form" in why["3.txt"]


def test_bad_sources_are_a_sentence_each(tmp_path, scans, digits):
    np.save(tmp_path / "a.npy", digits)
    (tmp_path / "empty").mkdir()
    (tmp_path / "words").write_text("hello")
    for words, sentence in (
        ((tmp_path / "a.npy", "--as-is"), "--as-is: expected pictures, found images in"),
        ((tmp_path / "none.png",), "none.png: expected a readable file, found: No such file"),
        ((scans, tmp_path / "words"), "words: expected a picture"),
        ((tmp_path / "*.jpg",), "expected files that this pattern matches, found none"),
        ((tmp_path / "empty",), "expected files in this folder, found none"),
    ):
        said = run(*words, "--out", tmp_path / "out", code=2).stderr
        assert sentence in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


# many


def test_looking_at_many_opens_none_and_asks_for_each_once(tmp_path, monkeypatch):
    folder = tmp_path / "many"
    for place in range(4):
        (folder / f"{place:02}").mkdir(parents=True)
        for number in range(1_000):
            os.close(os.open(folder / f"{place:02}" / f"{number:04}.png", os.O_CREAT))
    asked, told, stat = [], [], os.stat

    def counted(path, *words, **more):
        asked.append(path)
        return stat(path, *words, **more)

    def opened(*words):
        raise AssertionError(words)

    monkeypatch.setattr(os, "stat", counted)
    monkeypatch.setattr(given, "form_of", opened)
    monkeypatch.setattr(inputs, "open_source", opened)
    found = gather([folder], lambda done, of: told.append(done))
    monkeypatch.undo()
    assert found.inputs[0].images == 4_000 and found.listed.count(b"\0") == 4_000
    assert len(asked) <= 4_000 + 2 and len(told) == 8


def test_a_shard_reads_its_part_of_the_list(tmp_path, monkeypatch):
    """Records of all lengths over the ends of blocks of a few bytes."""
    wanted = [(number, number * 7, "/" + "x" * (number % 11)) for number in range(90)]
    listed = b"".join(b"%d %d %b\0" % (a, b, c.encode()) for a, b, c in wanted)
    path = tmp_path / LIST
    path.write_bytes(listed)
    for step in (1, 5, 13, 100, 10_000):
        monkeypatch.setattr(pictures, "_STEP", step)
        found = Listing(path, digest(listed))
        for lo, hi in ((0, 90), (0, 1), (1, 2), (89, 90), (30, 61), (7, 8)):
            assert found.records(lo, hi) == wanted[lo:hi]
    with pytest.raises(LenetError, match="found: another one"):
        Listing(path, digest(b""))
    with pytest.raises(LenetError, match="found: No such file"):
        Listing(tmp_path / "none", digest(b""))


def test_differences_are_named():
    one, two = b"1 1 /a\0", b"2 2 /b\0"
    assert difference(one, one + two) == "another one, /b"
    assert difference(one + two, two) == "that /a is not among them now"
    assert difference(one + two, two + one) == "them in another order"
    assert difference(one + two, b"1 2 /a\0" + two) == "that /a changed since"


# workers, and threads


@pytest.mark.slow
def test_two_dask_workers_write_the_files_of_none(tmp_path, scans, bad):
    pytest.importorskip("distributed", reason="no Dask")
    one = tmp_path / "one"
    run(scans, "--out", one, "--shard", 3, "--form", "csv", code=1)
    words = ("--shard", 3, "--form", "csv", "--workers", 2)
    process = start(tmp_path, "scans", "--out", "two", *words)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1, said
    assert parts(tmp_path / "two") == parts(one)
    names = ("no_label", "no_label_why", "counts")
    ours, theirs = (json.loads((tmp_path / name / "summary.json").read_text())
                    for name in ("one", "two"))  # fmt: skip
    assert [ours[name] for name in names] == [theirs[name] for name in names]


@pytest.mark.slow
def test_what_a_worker_costs(tmp_path, scans):
    found = tmp_path / "found.json"
    before = sorted(tmp_path.iterdir())
    run(scans, "--out", tmp_path / "out", "--predict", "--json", found)
    costs = json.loads(found.read_text())["costs"]
    assert 0 < 4 * costs["read"] < costs["read_all"] and costs["opening"] > 0
    assert sorted(tmp_path.iterdir()) == sorted([*before, found])


# one meaning of folders and patterns


def test_folders_and_patterns_mean_the_same_to_infer_and_classify(tmp_path, scans, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (scans / "more" / "deep" / "er").mkdir(parents=True)
    (scans / ".hidden").mkdir()
    for place in ("more/deep/er/z.png", ".hidden/a.png", "more/.b.png"):
        (scans / place).write_bytes((scans / "01.png").read_bytes())
    for source in ("scans", "scans/*.png", "scans/**/*.png", "scans/more/**", "scans/*"):
        ours = [os.path.abspath(path) for path in meant([source]).paths]
        listed = gather([scans.parent / source]).listed
        assert ours == [path for *_, path in pictures.records(listed)], source
        assert any(path.endswith("z.png") for path in ours) == (
            source not in ("scans/*.png", "scans/*")
        )
    (scans / "round").symlink_to(scans)
    assert len(meant(["scans"]).paths) == gather([scans]).inputs[0].images == 21
    assert matching("scans/mo*") == []
