"""`lenetgpu classify`: every row exactly once, however the job is interrupted; pictures."""

import csv
import errno
import json
import os
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
import terminal
from PIL import Image
from stored import idx_file

from lenetgpu.errors import LenetError
from lenetgpu.files.assets import default_digits
from lenetgpu.files.folders import below, looks_at, matching
from lenetgpu.jobs import crew, manifest, pictures, worker
from lenetgpu.jobs import job as cutting
from lenetgpu.jobs.inputs import Input, gather
from lenetgpu.jobs.job import Job
from lenetgpu.jobs.manifest import Failed, append
from lenetgpu.jobs.pictures import LIST, difference
from lenetgpu.lab import classify
from lenetgpu.measure.outcome import Request
from lenetgpu.pictures import read as reading
from lenetgpu.pictures.given import expand

CPU = ("--device", "cpu", "--plan", "fp32", "--no-progress")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def run(*words, code=0):
    done = terminal.run("classify", *words, *CPU, code=code)
    return done


def parts(out):
    return {path.name: path.read_bytes() for path in sorted(out.glob("part-*"))}


def labels(out):
    return np.concatenate([np.load(path) for path in sorted(out.glob("part-*.npy"))])


@pytest.fixture
def folder(tmp_path, digits):
    """Three files of 300, 200 and 100 images, one of them with an odd name."""
    read = tmp_path / "read"
    (read / "more").mkdir(parents=True)
    np.save(read / "a.npy", digits.images[:300])
    np.save(read / "b 2\n.npy", digits.images[300:500])
    np.save(read / "more" / "c.npy", digits.images[500:600])
    return read


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Labels of the first 600 digits by `infer`."""
    out = tmp_path_factory.mktemp("expected") / "labels.npy"
    words = ["infer", "--limit", "600", "--output", str(out), *CPU]
    assert terminal.run(*words).exit_code == 0
    return np.load(out)


def test_shards_have_the_labels_of_infer(out, folder, expected):
    said = run(folder, "--out", out, "--shard", 128).stdout
    assert (labels(out) == expected).all()
    parts = sorted(path.name for path in out.glob("part-*"))
    assert parts == [f"part-00000{k}.npy" for k in range(6)]
    assert "600 images in 3 files, 6 shards of at most 128" in said
    found = json.loads((out / "summary.json").read_text())
    assert found["counts"] == np.bincount(expected, minlength=10).tolist()
    assert found["accuracy"] is None and found["images_done"] == 600


def test_accuracy_is_printed_if_labels_exist(out, digits):
    said = run(default_digits(), "--out", out, "--shard", 4_000).stdout
    right = int((labels(out) == digits.labels).sum())
    assert f"accuracy {right:,}/10,000" in said


def test_restart_computes_only_missing_shards(out, folder, expected):
    run(folder, "--out", out, "--shard", 128)
    lines = (out / "manifest.json").read_text().splitlines(keepends=True)
    torn = lines[4][: len(lines[4]) // 2]
    (out / "manifest.json").write_text("".join(lines[:4]) + torn)
    (out / "part-000000.npy").unlink()
    kept = (out / "part-000002.npy").stat()
    run(folder, "--out", out, "--shard", 128)
    assert (labels(out) == expected).all()
    assert (out / "part-000002.npy").stat().st_mtime_ns == kept.st_mtime_ns
    found = manifest.read(out)
    assert sorted(found.done) == list(range(6)) and found.redone == 1
    assert json.loads((out / "summary.json").read_text())["this_run"]["shards"] == 4
    before = (out / "manifest.json").read_bytes()
    run(folder, "--out", out, "--shard", 128)
    assert (out / "manifest.json").read_bytes() == before


def test_different_job_in_the_folder_is_refused(out, folder, weight_file):
    run(folder, "--out", out, "--shard", 128)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    said = run(folder, "--out", out, "--shard", 100, code=2).stderr
    assert "with shards of 128, found shards of 100" in said
    said = run(folder, "--out", out, "--shard", 128, "--weights", weight_file, code=2).stderr
    assert f"{weight_file}, which differ" in said
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_changed_inputs_are_refused(out, folder, digits):
    run(folder, "--out", out)
    assert "is not among them now" in run(folder / "a.npy", "--out", out, code=2).stderr
    np.save(folder / "d.npy", digits.images[:5])
    assert "found another one" in run(folder, "--out", out, code=2).stderr
    (folder / "d.npy").unlink()
    np.save(folder / "a.npy", digits.images[1:301])
    assert (
        "a.npy: expected the file with which the job in" in run(folder, "--out", out, code=2).stderr
    )


def test_damaged_file_is_classified_once_repaired(tmp_path, folder, expected):
    """A truncated file is detected before the job starts; the other files are classified."""
    out, path = tmp_path / "out", folder / "more" / "c.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    done = run(folder, "--out", out, code=1)
    assert "c.npy: expected" in done.stderr and done.stdout.count("500 images") >= 1
    assert (labels(out) == expected[:500]).all()
    path.write_bytes(whole)
    run(folder, "--out", out)
    assert (labels(out) == expected).all()


def test_unreadable_shard_is_set_aside_after_retries(tmp_path, folder, digits):
    """An invalid float pixel is only found when the shard is read."""
    floats = digits.images[:300].astype(np.float32) / 255
    floats[150] = np.nan
    path, out = folder / "f.npy", tmp_path / "out"
    np.save(path, floats)
    done = run(path, "--out", out, "--shard", 100, "--tries", 2, code=1)
    assert "set aside after 2 tries" in done.stderr and "image 150" in done.stderr
    assert sorted(manifest.read(out).done) == [0, 2] and manifest.read(out).failed[1].tries == 2
    assert json.loads((out / "summary.json").read_text())["set_aside"][0]["shard"] == 1
    again = run(path, "--out", out, "--shard", 100, "--tries", 1, code=1)
    assert "set aside after 1 tries" in again.stderr
    assert json.loads((out / "summary.json").read_text())["this_run"]["shards"] == 0


def test_concurrent_job_is_refused(out, folder):
    with manifest.alone(out):
        assert "no other job is writing to" in run(folder, "--out", out, code=2).stderr
    run(folder, "--out", out)


def test_folder_with_other_files_is_left_alone(out, folder):
    out.mkdir()
    (out / "thesis.txt").write_text("years")
    assert "found other files (1), such as thesis.txt" in run(folder, "--out", out, code=2).stderr
    inside = run(folder, "--out", folder / "more", code=2)
    assert "outside" in inside.stderr
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "line", ["{}", '{"done": 3}', "not json", {"hash": "0" * 16}, {"counts": [0] * 10},
             {"right": 601}, {"said": 5}, {"files": 2}, {"size": "1"}], ids=str
)  # fmt: skip
def test_damaged_manifest_is_refused(out, folder, line):
    """Cases: lines that are not valid entries, and entries that contradict their shard."""
    run(folder, "--out", out)
    if isinstance(line, dict):
        last = json.loads((out / "manifest.json").read_text().splitlines()[-1])
        line = json.dumps({"done": last["done"] | line})
    with open(out / "manifest.json", "a") as file:
        file.write(line + "\n")
    said = run(folder, "--out", out, code=2).stderr
    assert "line 3 damaged" in said and said.count("\n") == 1


def test_cpu_workers_share_the_cores(monkeypatch):
    pytest.importorskip("distributed", reason="no Dask")
    monkeypatch.setattr(crew, "core_count", lambda: 8)
    monkeypatch.setattr(crew, "choose_device", lambda wanted, plan: (None, "none here"))
    assert crew.share(Request(), "4").threads == 2
    assert crew.share(Request(), "16").threads == 1
    assert crew.share(Request(threads=3), "4").threads == 3
    assert crew.share(Request(), None).threads is None
    monkeypatch.setattr(crew, "choose_device", lambda wanted, plan: (object(), "a GPU"))
    assert crew.share(Request(), "4").threads is None


def test_invalid_workers_and_schedulers_are_refused(out, folder):
    assert "--workers: expected cuda or 1 to 1024" in run(folder, "--out", out, "--workers", "many",
                                                          code=2).stderr  # fmt: skip
    both = run(folder, "--out", out, "--workers", 2, "--scheduler", "tcp://x:1", code=2)
    assert "one of --workers and --scheduler" in both.stderr


def test_torn_manifest_line_is_truncated(out, folder):
    run(folder, "--out", out)
    whole = (out / "manifest.json").read_bytes()
    with open(out / "manifest.json", "ab") as file:
        file.write(b'{"done": {"shard": 1, ' + b"x" * 100_000)
    append(out, manifest.read(out).job, Failed(0, 1, "why", 1))
    text = (out / "manifest.json").read_bytes()
    assert text.startswith(whole) and text.count(b"\n") == whole.count(b"\n") + 1
    assert list(json.loads(text.splitlines()[-1])) == ["failed"]


# changes while the job runs


@pytest.fixture
def images(tmp_path, digits):
    path = tmp_path / "a.npy"
    np.save(path, digits.images[:300])
    return path


@pytest.fixture
def meanwhile(monkeypatch):
    """Run a function when the labels of the first shard are computed."""

    def happens(call):
        add, calls = worker._LabelledShard.add, [call]

        def disturbed(self, labels, scores):
            if calls:
                calls.pop()()
            add(self, labels, scores)

        monkeypatch.setattr(worker._LabelledShard, "add", disturbed)

    return happens


def test_ctrl_c_in_second_shard_keeps_first(images, out, monkeypatch):
    """The first shard has its line, though it was not yet reported."""
    add = worker._LabelledShard.add

    def interrupted(self, labels, scores):
        if self.shard.number == 1:
            raise KeyboardInterrupt
        add(self, labels, scores)

    monkeypatch.setattr(worker._LabelledShard, "add", interrupted)
    done = run(images, "--out", out, "--shard", 100, code=130)
    assert "100 images, 1 shards" in done.stdout and "2 left" in done.stdout
    assert "for 100 images of this run" in done.stdout


def test_images_changed_while_reading_are_reported(images, out, meanwhile):
    def change():
        with open(images, "r+b") as file:
            file.seek(images.stat().st_size // 2)
            file.write(bytes(784))

    meanwhile(change)
    done = run(images, "--out", out, code=1)
    assert "found it changed since" in done.stderr
    assert not list(out.glob("part-*")) and manifest.read(out).done == {}
    assert [name for name in os.listdir(out) if name.startswith(".")] == [".lenetgpu.lock"]


def test_other_outputs_inside_the_folder_are_refused(images, out):
    run(images, "--out", out, "--shard", 200)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    done = run(images, "--out", out, "--shard", 200, "--json", out / "report.json", code=2)
    assert "expected a file outside" in done.stderr and done.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_folder_of_a_newer_job_is_left_alone(images, out, meanwhile):
    """The folder is emptied and another job begun in it while a worker computes a shard."""
    seen = {}

    def another():
        job = manifest.read(out).job
        shutil.rmtree(out)
        out.mkdir()
        manifest.begin(out, replace(job, id="another"))
        (out / "part-000000.npy").write_bytes(b"its own")
        seen.update({path.name: path.read_bytes() for path in out.iterdir()})

    meanwhile(another)
    done = run(images, "--out", out, code=2)
    assert "a newer job" in done.stderr and done.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == seen


def test_too_many_shards_are_refused(images, out, monkeypatch):
    monkeypatch.setattr(classify, "MOST", 3)
    done = run(images, "--out", out, "--shard", 99, code=2)
    assert "--shard 99: expected at most 3 shards, found 4 of 300 images" in done.stderr
    assert not (out / "manifest.json").exists()


def test_long_names_are_stored_whole(images, out):
    """Shortened in the middle, as for a terminal, the names of two folders would be the same."""
    folder, names = images.parent / ("y" * 150), []
    for middle in "ab":
        place = folder / ("y" * 150) / (middle * 60) / ("z" * 200)
        place.mkdir(parents=True)
        names.append(str(shutil.copy(images, place / f"{middle}.npy")))
    run(folder, "--out", out, "--form", "csv")
    (part,) = out.glob("part-*")
    assert [line.split(",")[1] for line in part.read_text().splitlines()[1::300]] == names


# small files that share a label file, and altered files


@pytest.fixture
def few(expected):
    return expected[:75]


@pytest.fixture
def small(tmp_path, digits):
    """25 files of three float images."""
    read = tmp_path / "read"
    read.mkdir()
    for number in range(25):
        images = digits.images[3 * number : 3 * number + 3].astype(np.float32) / 255
        np.save(read / f"{number:02}.npy", images)
    return read


@pytest.fixture
def labelled(tmp_path, digits):
    """Label file of an IDX file of 50 images next to it."""
    read = tmp_path / "labelled"
    read.mkdir()
    labels = digits.labels[:50].astype(np.uint8)
    idx_file(read / "t-images-idx3-ubyte", digits.images[:50, ..., 0], labels)
    return read / "t-labels-idx1-ubyte"


def test_small_files_share_label_files(small, out, few):
    said = run(small, "--out", out, "--shard", 30).stdout
    assert list(parts(out)) == [f"part-0000{n}.npy" for n in ("00", "10", "20")]
    assert (labels(out) == few).all() and "75 images, 25 shards" in said
    found = manifest.read(out)
    assert [(row.shard, row.files, row.images) for row in found.done.values()] == [
        (0, 10, 30),
        (10, 10, 30),
        (20, 5, 15),
    ]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["shards_done"] == summary["this_run"]["shards"] == 25
    assert summary["label_files"] == 3 and summary["counts"] == np.bincount(few).tolist()
    before = (out / "manifest.json").read_bytes()
    assert "25 shards" in run(small, "--out", out, "--shard", 30).stdout
    assert (out / "manifest.json").read_bytes() == before


def test_shared_label_file_names_each_image(small, out, few):
    run(small, "--out", out, "--form", "csv")
    (path,) = out.glob("part-*")
    names = [str(small / f"{number:02}.npy") for number in range(25) for _ in range(3)]
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    assert [row[0] for row in rows] == ["0", "1", "2"] * 25
    assert [row[1] for row in rows] == names
    assert [int(row[2]) for row in rows] == few.tolist()


@pytest.mark.parametrize(
    "asked, plan, have, then",
    [
        ("fp32", "fp16x3", "fp16x3", "fp16x3"),  # of another precision, but as accurate
        ("int8", "fp16", "fp16", "fp16"),  # the weights do not suit int8
        (None, "int8", "int8", "int8"),
        ("fp16x3", "int8", "int8", "fp16x3"),  # refused later: another job
        ("tf32", "fp32", "fp32", "tf32"),
    ],
)
def test_resumed_job_keeps_the_precision_auto_settled_on(
    folder, out, monkeypatch, asked, plan, have, then
):
    run(folder, "--out", out)
    path = out / manifest.MANIFEST
    document, *rows = path.read_text().splitlines()
    document = json.loads(document)
    document["job"] |= {"plan": plan, "precision": have, "device": "cuda"}
    path.write_text("\n".join([json.dumps(document), *rows, ""]))
    found = []

    def noted(request, *_):
        found.append((request.plan, request.precision))
        raise LenetError("enough")

    monkeypatch.setattr(classify, "crew", noted)
    request = classify.ClassifyRequest((folder,), out, precision=asked)
    with pytest.raises(LenetError, match="enough"):
        classify.classify(request, lambda *_: None, lambda _: None)
    assert found == [(plan, then)]


def test_two_dask_workers_give_the_same_files(small, out, tmp_path):
    pytest.importorskip("distributed", reason="no Dask")
    floats = np.load(small / "17.npy")
    floats[1] = np.nan
    np.save(small / "17.npy", floats)
    run(small, "--out", out, "--shard", 18, "--tries", 2, code=1)
    two = tmp_path / "two"
    run(small, "--out", two, "--shard", 18, "--tries", 2, "--workers", 2, code=1)
    assert parts(out) == parts(two) and len(parts(two)) > 5
    assert {**manifest.read(two).failed} == {**manifest.read(out).failed} != {}


def test_bad_file_of_a_shard_is_set_aside_alone(small, out, few):
    path = small / "07.npy"
    whole, floats = path.read_bytes(), np.load(path)
    floats[1] = np.nan
    np.save(path, floats)
    done = run(small, "--out", out, "--tries", 2, code=1)
    assert done.stderr.count("set aside after 2 tries") == 1 and "07.npy" in done.stderr
    expected = np.concatenate([few[:21], few[24:]])
    assert (labels(out) == expected).all() and list(manifest.read(out).failed) == [7]
    kept = parts(out)
    path.write_bytes(whole)
    run(small, "--out", out)
    assert (labels(out) == np.concatenate([expected, few[21:24]])).all()
    assert kept.items() <= parts(out).items()


def test_manifest_line_must_match_its_files(small, out):
    run(small, "--out", out, "--shard", 30)
    lines = manifest.read(out)
    job = lines.job
    assert lines.listed(out, job.several(0, 10)) == lines.done[0]
    assert lines.listed(out, job.several(0, 9)) is lines.listed(out, job.shard(0)) is None
    assert len({job.several(0, count).hash for count in range(1, 11)}) == 10
    (out / "part-000000.npy").write_bytes(b"cut")
    assert lines.listed(out, job.several(0, 10)) is None


def test_small_files_are_grouped_into_shards(monkeypatch):
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


@pytest.mark.parametrize("harm", ["edited", "cut", "gone"])
def test_damaged_label_file_is_recomputed(small, out, harm):
    run(small, "--out", out, "--shard", 30)
    before, path = parts(out), out / "part-000010.npy"
    whole = bytearray(before[path.name])
    whole[-1] ^= 1
    path.write_bytes(bytes(whole) if harm == "edited" else bytes(whole[:-4]))
    if harm == "gone":
        path.unlink()
    kept = (out / "part-000020.npy").stat().st_mtime_ns
    said = run(small, "--out", out, "--shard", 30).stderr
    assert f"{path}: expected the labels that were listed" in said and said.count("\n") == 1
    assert parts(out) == before and (out / "part-000020.npy").stat().st_mtime_ns == kept
    assert json.loads((out / "summary.json").read_text())["this_run"]["shards"] == 10


def test_label_file_changed_during_the_job_is_reported(small, out, monkeypatch):
    look, path = classify._look_again, out / "part-000010.npy"

    def disturbed(*given):
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
        look(*given)

    monkeypatch.setattr(classify, "_look_again", disturbed)
    done = run(small, "--out", out, "--shard", 30, code=1)
    assert f"{path}: expected the labels that were listed" in done.stderr
    assert "10 left" in done.stdout
    assert len(json.loads((out / "summary.json").read_text())["altered"]) == 1
    monkeypatch.undo()
    run(small, "--out", out, "--shard", 30)
    assert len(labels(out)) == 75


def test_unlisted_shard_files_are_removed_at_the_end(small, out, monkeypatch):
    opened = worker.Worker._opened

    def disturbed(self, shard):
        """Simulate a killed worker that wrote half of a group; another worker completed it."""
        (out / "part-000005.npy").write_bytes(b"half")
        (out / "part-000025.npy").write_bytes(b"no shard's")
        return opened(self, shard)

    monkeypatch.setattr(worker.Worker, "_opened", disturbed)
    run(small, "--out", out, "--shard", 30)
    assert [*parts(out)] == [f"part-0000{n}.npy" for n in ("00", "10", "20", "25")]


def test_changed_labels_of_images_are_detected(labelled, out):
    said = run(labelled.parent, "--out", out).stdout
    assert "50 images in 1 file" in said and "accuracy" in said
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    facts, text = labelled.stat(), labelled.read_bytes()
    labelled.write_bytes(text[:-1] + bytes([(text[-1] + 1) % 10]))
    os.utime(labelled, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    said = run(labelled.parent, "--out", out, code=2).stderr
    assert (
        "t-images-idx3-ubyte: expected the file with which the job" in said
        and said.count("\n") == 1
    )
    assert "t-labels-idx1-ubyte, its labels, changed since" in said
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("pattern", ["**/*", "o?t/p*.npy", "link/*.npy"])
def test_pattern_that_matches_results_is_refused(tmp_path, small, out, pattern, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(out)
    for _ in range(2):
        said = run(small, pattern, "--out", out, code=2).stderr
        assert "found a match for part-000000.npy" in said and said.count("\n") == 1
        assert not out.exists()
    run(small / "0?.npy", "read/**/1*.npy", "--out", out)


def test_pattern_check_agrees_with_expansion(tmp_path):
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


def test_manifest_of_another_version_is_refused_as_such(small, out):
    run(small, "--out", out)
    path = out / "manifest.json"
    first, *rest = path.read_text().splitlines(keepends=True)
    document = json.loads(first) | {"schema": 99, "lenetgpu": "0.0.7"}
    path.write_text(json.dumps(document) + "\n" + "".join(rest))
    before = path.read_bytes()
    said = run(small, "--out", out, code=2).stderr
    found = "expected a manifest of format 2, found one of format 99, by lenetgpu 0.0.7"
    assert found in said and "damaged" not in said and path.read_bytes() == before
    with pytest.raises(LenetError, match="found one of format"):
        manifest.complete(out)


# pictures


ODD = 'a, "b"\n.png', "=1+1 é.png", os.fsdecode(b"\xff.png")


def draw(path, digit):
    Image.fromarray(255 - digit[..., 0]).save(path)


@pytest.fixture
def scans(tmp_path, digits):
    """Twenty pictures, dark on light, some in a subfolder, three with odd names."""
    folder = tmp_path / "scans"
    (folder / "more").mkdir(parents=True)
    for number in range(17):
        draw(
            folder / ("more" if number % 3 == 0 else "") / f"{number:02}.png", digits.images[number]
        )
    for number, name in enumerate(ODD, 17):
        draw(folder / name, digits.images[number])
    return folder


def infer(*words):
    done = terminal.run("infer", *words, *CPU)
    assert done.exit_code in (0, 1), done.output


def table(folder):
    paths = [folder] if folder.is_file() else sorted(folder.glob("part-*.csv"))
    return [row for path in paths for row in csv.DictReader(path.open(newline=""))]


@pytest.mark.parametrize("as_is", [(), ("--as-is",)], ids=["prepared", "as it is"])
def test_labels_and_names_equal_those_of_infer(tmp_path, scans, as_is):
    out, other = tmp_path / "out", tmp_path / "infer.csv"
    said = run(scans, "--out", out, "--shard", 7, "--form", "csv", "--scores", *as_is).stdout
    infer(scans, "--output", other, "--scores", *as_is)
    assert "20 pictures, 3 shards of at most 7" in said and "no label" not in said
    ours = table(out)
    assert all(row.pop("error") == "" for row in ours)
    assert ours == table(other)
    assert len({row["label"] for row in ours}) > 1


@pytest.fixture
def bad(scans):
    """Indices of the two pictures of `scans` that have no label, and their error messages."""
    (scans / "10.png").write_bytes((scans / "10.png").read_bytes()[:-20])
    Image.new("L", (40, 40), 200).save(scans / "11.png")
    names = list(below(str(scans)))
    places = [names.index(str(scans / name)) for name in ("10.png", "11.png")]
    return places, ["Truncated File Read", "found a blank picture"]


def test_unreadable_picture_is_a_row_without_label(tmp_path, scans, bad):
    places, why = bad
    out, other = tmp_path / "out", tmp_path / "infer.json"
    done = run(scans, "--out", out, "--shard", 3, code=1)
    infer(scans, "--output", other)
    found = labels(out)
    assert np.flatnonzero(found == -1).tolist() == places
    assert found[found >= 0].tolist() == json.loads(other.read_text())["labels"]
    assert "no label 2 of them" in done.stdout and all(part in done.stdout for part in why)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["no_label"] == 2 and sum(summary["counts"]) == 18
    assert all(part in said for part, said in zip(why, summary["no_label_why"], strict=True))
    assert sum(row.bad for row in manifest.read(out).done.values()) == 2
    before = parts(out), (out / "manifest.json").read_bytes()
    again = run(scans, "--out", out, "--shard", 3, code=1).stdout
    assert "no label 2 of them" in again and all(part in again for part in why)
    assert "elapsed" not in again
    quiet = run(scans, "--out", out, "--shard", 3, "--quiet", code=1).stdout.splitlines()
    assert [line.split()[0] for line in quiet[:3]] == ["done", "digits", "no"]
    assert quiet == again.splitlines()[3:]
    assert (parts(out), (out / "manifest.json").read_bytes()) == before


def test_each_format_represents_missing_labels(tmp_path, scans, bad, monkeypatch):
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


def test_parquet_has_null_label_and_error_message(out, scans, bad, monkeypatch):
    monkeypatch.setattr(worker, "AT_ONCE", 4)
    dataset = pytest.importorskip("pyarrow.dataset", reason="no pyarrow")
    places, why = bad
    run(scans, "--out", out, "--form", "parquet", "--shard", 6, "--scores", code=1)
    files = [str(path) for path in sorted(out.glob("part-*"))]
    found = dataset.dataset(files).to_table().to_pydict()
    assert found["index"] == list(range(20)) and len(set(found["file"])) == 20
    for place in range(20):
        missing = place in places
        assert (found["label"][place] is None) == missing == (found["score3"][place] is None)
        assert (found["error"][place] is not None) == missing
    assert why[0] in found["error"][places[0]] and why[1] in found["error"][places[1]]


def change(path):
    facts = path.stat()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))


def test_damaged_list_is_rebuilt(out, scans):
    run(scans, "--out", out, "--shard", 3)
    whole, listed = parts(out), (out / LIST).read_bytes()
    (out / "part-000002.npy").unlink()
    (out / LIST).unlink()
    (out / LIST).write_bytes(listed.replace(b"04.png", b"05.png"))
    run(scans, "--out", out, "--shard", 3)
    assert (parts(out), (out / LIST).read_bytes()) == (whole, listed)


def test_picture_changed_during_the_job_sets_shard_aside(tmp_path, scans, monkeypatch):
    out, begin = tmp_path / "out", manifest.begin

    def begun(*words):
        begin(*words)
        change(scans / "04.png")

    monkeypatch.setattr(manifest, "begin", begun)
    done = run(scans, "--out", out, "--shard", 5, "--tries", 1, code=1)
    assert "set aside" in done.stderr and "04.png: expected the picture" in done.stderr
    assert "found it changed since" in done.stderr and len(manifest.read(out).done) == 3


def test_transient_read_error_is_retried(out, scans, monkeypatch):
    real, left = reading.read_whole, [2]

    def fails(path, *words):
        if path.name == "04.png" and left[0]:
            left[0] -= 1
            error = OSError(errno.EIO, "Input/output error")
            raise LenetError(f"{path}: Input/output error") from error
        return real(path, *words)

    monkeypatch.setattr(reading, "read_whole", fails)
    run(scans, "--out", out, "--shard", 5, "--tries", 3)
    assert left == [0] and (labels(out) >= 0).all()


def test_other_files_in_a_folder_are_reported(out, scans):
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
    assert "5 bytes in no known format" in why["3.txt"]


def test_invalid_sources_are_refused(tmp_path, scans, digits):
    np.save(tmp_path / "a.npy", digits.images)
    np.save(tmp_path / "floats.npy", digits.images[:3].astype(np.float32) / 255)
    (tmp_path / "empty").mkdir()
    (tmp_path / "words").write_text("hello")
    for words, sentence in (
        ((tmp_path / "a.npy", tmp_path / "floats.npy"), "expected images of uint8"),
        ((scans / "01.png", tmp_path / "a.npy"), "a.npy: expected pictures only, as "),
        ((tmp_path / "a.npy", scans / "01.png"), "01.png: expected files of many images only"),
        ((tmp_path / "a.npy", tmp_path / "a.npy"), "expected each file once"),
        ((tmp_path / "a.npy", "--as-is"), "--as-is: expected pictures, found images in"),
        ((tmp_path / "none.png",), "none.png: expected a readable file, found: No such file"),
        ((scans, tmp_path / "words"), "words: expected a picture"),
        ((tmp_path / "*.jpg",), "expected files that this pattern matches, found none"),
        ((tmp_path / "empty",), "expected files in this folder, found none"),
    ):
        said = run(*words, "--out", tmp_path / "out", code=2).stderr
        assert sentence in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_changed_sources_are_named():
    one, two = b"1 1 /a\0", b"2 2 /b\0"
    assert difference(one, one + two) == "another one, /b"
    assert difference(one + two, two) == "that /a is not among them now"
    assert difference(one + two, two + one) == "them in another order"
    assert difference(one + two, b"1 2 /a\0" + two) == "that /a changed since"


def test_infer_and_classify_expand_sources_alike(tmp_path, scans, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in ("scans", "scans/*.png", "scans/**/*.png", "scans/more/**"):
        ours = [os.path.abspath(path) for path in expand([source]).paths]
        listed = gather([scans.parent / source]).listed
        assert ours == [path for *_, path in pictures.records(listed)] != [], source
