"""`lenetgpu classify`: small files that share a file of labels; files not as they were."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.files import output
from lenetgpu.files.assets import default_digits
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.folders import looks_at, matching
from lenetgpu.jobs import job as cutting
from lenetgpu.jobs import manifest, worker
from lenetgpu.jobs.inputs import Input
from lenetgpu.jobs.job import Job
from lenetgpu.jobs.manifest import Follower
from lenetgpu.lab import classify

CPU = ("--device", "cpu", "--plan", "fp32", "--no-progress")


@pytest.fixture(scope="module")
def digits():
    return load_dataset(default_digits())


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """What `infer` says of the first 75 digits."""
    out = tmp_path_factory.mktemp("truth") / "labels.npy"
    words = ["infer", "--limit", "75", "--output", str(out), *CPU]
    assert CliRunner().invoke(main, words).exit_code == 0
    return np.load(out)


@pytest.fixture
def folder(tmp_path, digits):
    """25 files of three images, floats."""
    read = tmp_path / "read"
    read.mkdir()
    for number in range(25):
        images = digits.images[3 * number : 3 * number + 3].astype(np.float32) / 255
        np.save(read / f"{number:02}.npy", images)
    return read


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def run(*words, code=0):
    done = CliRunner().invoke(main, ["classify", *map(str, words), *CPU])
    assert done.exit_code == code, done.output
    return done


def parts(out):
    return {path.name: path.read_bytes() for path in sorted(out.glob("part-*"))}


def labels(out):
    return np.concatenate([np.load(path) for path in sorted(out.glob("part-*.npy"))])


def idx(path, array):
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes())


@pytest.fixture
def labelled(tmp_path, digits):
    """50 images of IDX with their labels beside them: the file of these."""
    read = tmp_path / "labelled"
    read.mkdir()
    idx(read / "t-images-idx3-ubyte", digits.images[:50, ..., 0])
    idx(read / "t-labels-idx1-ubyte", digits.labels[:50].astype(np.uint8))
    return read / "t-labels-idx1-ubyte"


def test_small_files_share_files_of_labels(folder, out, truth):
    said = run(folder, "--out", out, "--shard", 30).stdout
    assert list(parts(out)) == [f"part-0000{n}.npy" for n in ("00", "10", "20")]
    assert (labels(out) == truth).all() and "75 images, 25 shards" in said
    found = manifest.read(out)
    assert [(row.shard, row.files, row.images) for row in found.done.values()] == [
        (0, 10, 30),
        (10, 10, 30),
        (20, 5, 15),
    ]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["shards_done"] == summary["this_run"]["shards"] == 25
    assert summary["label_files"] == 3 and summary["counts"] == np.bincount(truth).tolist()
    before = (out / "manifest.json").read_bytes()
    assert "25 shards" in run(folder, "--out", out, "--shard", 30).stdout
    assert (out / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("form", ["csv", "json", "h5", "parquet"])
def test_rows_of_a_shared_file_name_theirs(folder, out, form, truth):
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="no pyarrow")
    run(folder, "--out", out, "--form", form)
    (path,) = out.glob("part-*")
    names = [str(folder / f"{number:02}.npy") for number in range(25) for _ in range(3)]
    if form == "csv":
        rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
        assert [row[0] for row in rows] == ["0", "1", "2"] * 25
        assert [row[1] for row in rows] == names
        assert [int(row[2]) for row in rows] == truth.tolist()
    elif form == "json":
        found = json.loads(path.read_text())
        assert found["files"] == names and found["labels"] == truth.tolist()
    elif form == "h5":
        import h5py

        with h5py.File(path) as file:
            found = [bytes(row).rstrip(b"\0").decode() for row in file["files"][:]]
            assert found == names and (file["labels"][:] == truth).all()
    else:
        from pyarrow import parquet

        table = parquet.read_table(path)
        assert table["file"].to_pylist() == names
        assert table["index"].to_pylist() == [0, 1, 2] * 25


def test_two_dask_workers_share_them_out_alike(folder, out, tmp_path):
    pytest.importorskip("distributed", reason="no Dask")
    floats = np.load(folder / "17.npy")
    floats[1] = np.nan
    np.save(folder / "17.npy", floats)
    run(folder, "--out", out, "--shard", 18, "--tries", 2, code=1)
    two = tmp_path / "two"
    run(folder, "--out", two, "--shard", 18, "--tries", 2, "--workers", 2, code=1)
    assert parts(out) == parts(two) and len(parts(two)) > 5
    assert {**manifest.read(two).failed} == {**manifest.read(out).failed} != {}


def test_of_files_done_together_only_the_bad_one_is_set_aside(folder, out, truth):
    path = folder / "07.npy"
    whole, floats = path.read_bytes(), np.load(path)
    floats[1] = np.nan
    np.save(path, floats)
    done = run(folder, "--out", out, "--tries", 2, code=1)
    assert done.stderr.count("set aside after 2 tries") == 1 and "07.npy" in done.stderr
    expected = np.concatenate([truth[:21], truth[24:]])
    assert (labels(out) == expected).all() and list(manifest.read(out).failed) == [7]
    kept = parts(out)
    path.write_bytes(whole)
    run(folder, "--out", out)
    assert (labels(out) == np.concatenate([expected, truth[21:24]])).all()
    assert kept.items() <= parts(out).items()


def test_a_small_file_that_changes_while_others_are_read(folder, out, truth, monkeypatch):
    begin = worker.Worker._begin

    def disturbed(self, shard, writer):
        if shard.more and shard.number == 0:
            os.utime(folder / "03.npy", ns=(1, 1))
        return begin(self, shard, writer)

    monkeypatch.setattr(worker.Worker, "_begin", disturbed)
    assert "03.npy: expected the file that the job" in run(folder, "--out", out, code=1).stderr
    assert (labels(out) == np.concatenate([truth[:9], truth[12:]])).all()


@pytest.mark.parametrize("become", ["short", "pixels"])
def test_a_small_file_that_became_another_one(folder, out, become, monkeypatch, digits):
    begin = worker.Worker._begin

    def disturbed(self, shard, writer):
        images = np.load(folder / "03.npy")
        if len(images) == 3 and images.dtype == np.float32:
            np.save(folder / "03.npy", images[:2] if become == "short" else digits.images[:3])
        return begin(self, shard, writer)

    monkeypatch.setattr(worker.Worker, "_begin", disturbed)
    assert "03.npy: expected the file that the job" in run(folder, "--out", out, code=1).stderr
    assert list(manifest.read(out).failed) == [3]


def test_a_shared_file_that_is_gone_is_made_again_alone(folder, out, truth):
    run(folder, "--out", out, "--shard", 30)
    before = parts(out)
    (out / "part-000010.npy").unlink()
    (out / "part-000013.npy").write_bytes(before["part-000020.npy"])  # of nobody's line
    kept = (out / "part-000020.npy").stat()
    run(folder, "--out", out, "--shard", 30)
    assert parts(out) == before
    assert (out / "part-000020.npy").stat().st_mtime_ns == kept.st_mtime_ns
    assert json.loads((out / "summary.json").read_text())["this_run"]["shards"] == 10


def test_a_line_of_other_files_is_not_that_of_some(folder, out):
    run(folder, "--out", out, "--shard", 30)
    job, lines = manifest.read(out).job, Follower(out)
    assert lines.row(job.several(0, 10)) == manifest.read(out).done[0]
    assert lines.row(job.several(0, 9)) is None and lines.row(job.shard(0)) is None
    assert len({job.several(0, count).hash for count in range(1, 11)}) == 10
    (out / "part-000000.npy").write_bytes(b"cut")
    assert lines.row(job.several(0, 10)) is None


def test_a_line_takes_those_that_it_lies_over_away(folder, out):
    run(folder, "--out", out, "--shard", 30)
    found = manifest.read(out)
    row = replace(found.done[10], shard=9, files=3)
    found.take(row)
    assert sorted(found.done) == [9, 20] and found.row(0) is None and found.row(19) is None
    assert found.row(9) is found.row(11) is row and found.redone == 1
    assert found.done_inputs == {str(folder / f"{n:02}.npy") for n in (9, 10, 11, *range(20, 25))}


def test_how_small_files_are_put_together(monkeypatch):
    monkeypatch.setattr(cutting, "LITTLE", 50)
    monkeypatch.setattr(cutting, "TOGETHER", 100)
    monkeypatch.setattr(cutting, "FILES", 3)
    sizes = (50, 50, 1, 1, 1, 1, 51, 2, 250, 3, 4)

    def cut(**more):
        inputs = (Input(str(k), n, "uint8", k > 9, "") for k, n in enumerate(sizes))
        job = Job(tuple(inputs), "w", "d", "fp32", "fp32", "cpu", **more)
        return [[len(one) for one in s.each] for s in job.joined(one.number for one in job.shards)]

    assert cut(size=200) == [[50, 50], [1, 1, 1], [1], [51], [2], [200], [50], [3], [4]]
    assert cut(size=60)[:4] == [[50], [50, 1, 1], [1, 1], [51]]


def test_of_many_that_are_not_as_listed_the_first_are_said(folder, out):
    run(folder, "--out", out, "--shard", 3)
    for path in out.glob("part-*"):
        path.unlink()
    said = run(folder, "--out", out, "--shard", 3).stderr
    assert said.count("found no such file; they are made again") == 10
    assert "and 15 more files of labels that are not as they were listed" in said


def test_labels_that_cannot_be_sealed_leave_nothing(folder, out, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output, "known_by", full)
    said = run(folder, "--out", out, code=2).stderr
    assert "part-000000.npy: expected a place to write to" in said and said.count("\n") == 1
    assert {path.name for path in out.iterdir()} <= {".lenetgpu.lock", "manifest.json"}
    monkeypatch.undo()
    run(folder, "--out", out)


@pytest.mark.parametrize("harm", ["edited", "cut"])
def test_labels_that_are_not_as_listed_are_made_again(folder, out, harm):
    run(folder, "--out", out, "--shard", 30)
    before, path = parts(out), out / "part-000010.npy"
    whole = bytearray(before[path.name])
    whole[-1] ^= 1
    path.write_bytes(bytes(whole) if harm == "edited" else bytes(whole[:-4]))
    said = run(folder, "--out", out, "--shard", 30).stderr
    assert f"{path}: expected the labels that were listed" in said and said.count("\n") == 1
    assert parts(out) == before
    assert json.loads((out / "summary.json").read_text())["this_run"]["shards"] == 10


@pytest.mark.parametrize("harm", ["edited", "cut", "gone"])
def test_labels_that_change_before_the_end_are_said(folder, out, harm, monkeypatch):
    look, path = classify._look_again, out / "part-000010.npy"

    def disturbed(outcome, told):
        whole = path.read_bytes()
        if harm == "gone":
            path.unlink()
        else:
            path.write_bytes(whole[:-1] + b"\1" if harm == "edited" else whole[:-4])
        look(outcome, told)

    monkeypatch.setattr(classify, "_look_again", disturbed)
    done = run(folder, "--out", out, "--shard", 30, code=1)
    assert f"{path}: expected the labels that were listed" in done.stderr
    assert "10 left" in done.stdout
    assert len(json.loads((out / "summary.json").read_text())["altered"]) == 1
    monkeypatch.undo()
    run(folder, "--out", out, "--shard", 30)
    assert len(labels(out)) == 75


def test_files_that_no_line_names_go_at_the_end(folder, out, monkeypatch):
    begin = worker.Worker._begin

    def disturbed(self, shard, writer):
        """As of one who did half of a lot, and was killed; another did it whole."""
        (out / "part-000005.npy").write_bytes(b"half")
        (out / "part-000025.npy").write_bytes(b"no shard's")
        return begin(self, shard, writer)

    monkeypatch.setattr(worker.Worker, "_begin", disturbed)
    run(folder, "--out", out, "--shard", 30)
    assert [*parts(out)] == [f"part-0000{n}.npy" for n in ("00", "10", "20", "25")]


def test_a_job_that_took_the_place_keeps_its_files(folder, out, monkeypatch):
    look, other = classify._look_again, "part-000005.npy"

    def disturbed(outcome, told):
        path = out / "manifest.json"
        path.write_text(path.read_text().replace(outcome.job.id, "0" * len(outcome.job.id)))
        (out / other).write_bytes(b"another job's")
        look(outcome, told)

    monkeypatch.setattr(classify, "_look_again", disturbed)
    said = run(folder, "--out", out, "--shard", 30, code=2).stderr
    assert "found another one begun since" in said and said.count("\n") == 1
    assert (out / other).exists() and not (out / "summary.json").exists()


def test_ctrl_c_while_labels_are_looked_at(folder, out, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(classify, "altered", stopped)
    assert "interrupted: 0 shards left" in run(folder, "--out", out, code=130).stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["interrupted"] and summary["images_done"] == 75


def test_labels_that_were_moved_and_linked_are_done(folder, out, tmp_path):
    run(folder, "--out", out, "--shard", 30)
    (out / "part-000010.npy").rename(tmp_path / "elsewhere.npy")
    (out / "part-000010.npy").symlink_to(tmp_path / "elsewhere.npy")
    run(folder, "--out", out, "--shard", 30)
    assert json.loads((out / "summary.json").read_text())["this_run"]["shards"] == 0


def test_altered_labels_whose_line_has_odd_fields(folder, out):
    run(folder, "--out", out)
    path = out / "manifest.json"
    first, line = path.read_text().splitlines()
    document = json.loads(line)
    document["done"]["worker"] = []
    path.write_text(f"{first}\n{json.dumps(document)}\n")
    (out / "part-000000.npy").write_bytes(b"cut")
    assert "they are made again" in run(folder, "--out", out).stderr


@pytest.mark.parametrize("change", ["other", "gone", "touched"])
def test_labels_beside_images_that_change_are_noticed(labelled, out, change):
    images = labelled.with_name("t-images-idx3-ubyte")
    run(images, "--out", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    if change == "gone":
        labelled.unlink()
    elif change == "touched":
        os.utime(labelled, ns=(1, 1))
    else:
        facts, text = labelled.stat(), labelled.read_bytes()
        labelled.write_bytes(text[:-1] + bytes([(text[-1] + 1) % 10]))
        os.utime(labelled, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    said = run(images, "--out", out, code=2).stderr
    assert "t-images-idx3-ubyte: expected the file that the job" in said and said.count("\n") == 1
    assert change == "gone" or "t-labels-idx1-ubyte, its labels, changed since" in said
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_labels_beside_images_that_change_while_these_are_read(labelled, out, monkeypatch):
    add = worker._Labelled.add

    def disturbed(self, found, scores):
        os.utime(labelled, ns=(1, 1))
        add(self, found, scores)

    monkeypatch.setattr(worker._Labelled, "add", disturbed)
    said = run(labelled.parent, "--out", out, "--shard", 20, code=1).stderr
    assert "its labels, changed since" in said and manifest.read(out).done == {}


def test_only_idx_images_have_labels_beside_them(tmp_path, out, digits):
    images, labels = tmp_path / "images.npy", tmp_path / "labels.npy"
    np.save(images, digits.images[:5])
    labels.write_text("another matter")
    run(images, "--out", out)
    labels.write_text("changed")
    run(images, "--out", out)


@pytest.mark.parametrize("pattern", ["*/*.npy", "**/*", "out/part-*", "o?t/p*.npy", "link/*.npy"])
def test_a_pattern_that_would_match_the_results(tmp_path, folder, out, pattern, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(out)
    for _ in range(2):
        said = run(folder, pattern, "--out", out, code=2).stderr
        assert "that it would match part-000000.npy" in said and said.count("\n") == 1
        assert not out.exists()
    run(folder / "0?.npy", "read/**/1*.npy", "--out", out)


def test_a_pattern_in_a_folder_whose_name_looks_like_one(tmp_path, folder, monkeypatch):
    place = tmp_path / "x[1]"
    place.mkdir()
    folder.rename(place / "read")
    monkeypatch.chdir(place)
    assert "would match part-000000.npy" in run("*/*.npy", "--out", "out", code=2).stderr
    run("read/*.npy", "--out", "out")


def test_a_pattern_that_leaves_its_folder(tmp_path, folder, out, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("rea?/../read/00.npy", "--out", out)
    assert len(labels(out)) == 3
    assert looks_at("rea?/../out/part-000000.npy", str(out / "part-000000.npy"))


def test_patterns_match_what_they_would_find(tmp_path):
    places = ["a/out/p.npy", "a/.b/out/p.npy", "out/p.npy", ".out/p.npy", "out/p.h5", "a/x/y/p.npy"]
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    some = "*/*.npy **/*.npy ** a/** a/**/p.* .*/* */.b/out/[o-q].npy a/*/*/p.npy"
    for pattern in (*some.split(), "**/out/*", "a/**/out/**", "out/[!a].h5", "x/*", "*"):
        found = matching(str(tmp_path / pattern))
        for place in places:
            path = str(tmp_path / place)
            assert looks_at(str(tmp_path / pattern), path) == (path in found), (pattern, place)


@pytest.mark.parametrize("schema", [1, 99, "2"])
def test_a_manifest_of_another_version_is_no_damaged_one(folder, out, schema):
    run(folder, "--out", out)
    path = out / "manifest.json"
    first, *rest = path.read_text().splitlines(keepends=True)
    document = json.loads(first) | {"schema": schema, "lenetgpu": "0.0.7"}
    path.write_text(json.dumps(document) + "\n" + "".join(rest))
    before = path.read_bytes()
    said = run(folder, "--out", out, code=2).stderr
    found = f"expected a manifest of format 2, found one of format {schema}, by lenetgpu 0.0.7"
    assert found in said and "damaged" not in said and path.read_bytes() == before
    with pytest.raises(LenetError, match="found one of format"):
        manifest.whole(out)
