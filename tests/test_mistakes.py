"""Mistakes of a run: counted by hand, listed in full, summarised, for every way of reading."""

import csv
import importlib.util

import h5py
import numpy as np
import pytest
from conftest import ROOT
from stored import hdf5
from terminal import refused, run

from lenetgpu.check import mistakes
from lenetgpu.check.mistakes import Mistakes, confusion, confusions, per_digit
from lenetgpu.files import source as source_module
from lenetgpu.files.output import LabelWriter
from lenetgpu.files.reading import MemorySource
from lenetgpu.lab import infer as job
from lenetgpu.lab import mistakes as files
from lenetgpu.lab.mistakes import lines, probability, share
from lenetgpu.measure.outcome import Request

DIGITS = ROOT / "data" / "digits-10k.h5"
CPU = ("--device", "cpu", "--plan", "tiled")
N = 240

LABELS = np.array([4, 4, 4, 4, 9, 9, 7, 7, 0, 4, 1])
READ = np.array([4, 9, 9, 1, 9, 4, 7, 7, 0, 9, 9], np.int32)


def test_confusion_counts_by_hand(monkeypatch):
    expected = np.zeros((10, 10), int)
    expected[0, 0], expected[1, 9], expected[4, 4], expected[4, 9] = 1, 1, 1, 3
    expected[4, 1], expected[9, 9], expected[9, 4], expected[7, 7] = 1, 1, 1, 2
    for at_once in (1, 4, 1000):
        monkeypatch.setattr(mistakes, "_AT_ONCE", at_once)
        np.testing.assert_array_equal(confusion(LABELS, READ), expected)
    assert per_digit(expected) == [
        {"digit": 0, "images": 1, "correct": 1, "accuracy": 1.0},
        {"digit": 1, "images": 1, "correct": 0, "accuracy": 0.0},
        {"digit": 4, "images": 5, "correct": 1, "accuracy": 0.2},
        {"digit": 7, "images": 2, "correct": 2, "accuracy": 1.0},
        {"digit": 9, "images": 2, "correct": 1, "accuracy": 0.5},
    ]
    assert confusions(expected) == [
        {"label": 4, "predicted": 9, "images": 3},
        {"label": 1, "predicted": 9, "images": 1},
        {"label": 4, "predicted": 1, "images": 1},
        {"label": 9, "predicted": 4, "images": 1},
    ]
    document = {"per_digit": per_digit(expected), "confusions": confusions(expected)}
    np.testing.assert_array_equal(mistakes.counts_of(document), expected)


def noted(parts, done, first=100):
    """Return the mistakes recorded when LABELS arrive in parts, with scores of known softmax."""
    shares = np.full((len(LABELS), 10), 0.01)
    shares[np.arange(len(LABELS)), READ] = 0.71 - np.arange(len(LABELS)) / 100
    shares[:, 5] = 0.21 + np.arange(len(LABELS)) / 100
    scores = (np.log(shares) + 3).astype(np.float32)
    kept = Mistakes(LABELS, first)
    for lo, hi in parts:
        kept.add(lo, READ[lo:hi], scores[lo:hi])
    return kept.rows(done)


def test_mistakes_by_hand():
    rows = noted([(0, 2), (2, 5), (5, 11)], 11)
    np.testing.assert_array_equal(rows["index"], [101, 102, 103, 105, 109, 110])
    np.testing.assert_array_equal(rows["label"], [4, 4, 4, 9, 4, 1])
    np.testing.assert_array_equal(rows["predicted"], [9, 9, 1, 4, 9, 9])
    np.testing.assert_array_equal(rows["runner_up"], [5] * 6)
    np.testing.assert_allclose(rows["probability"], [0.70, 0.69, 0.68, 0.66, 0.62, 0.61], 1e-6)
    np.testing.assert_allclose(rows["label_probability"], [0.01] * 6, 1e-6)
    np.testing.assert_allclose(
        rows["runner_up_probability"], [0.22, 0.23, 0.24, 0.26, 0.30, 0.31], 1e-6
    )
    assert rows.dtype.itemsize == 35
    np.testing.assert_array_equal(rows, noted([(0, 11)], 11))


def test_images_of_mistakes_are_read_in_order(rng):
    """Gzip files read fastest forwards; `index` includes the images skipped at the start."""
    images = rng.random((9, 28, 28, 1), np.float32)
    images[8, 0, :2] = [[1.5], [-0.5]]
    read = []

    class Watched(MemorySource):
        def _fill(self, first, out):
            read.append(first)
            super()._fill(first - 100, out)

    source = Watched(images, None, "x")
    source.selection = range(100, 109)
    rows = np.zeros(4, mistakes.ROW)
    rows["index"], rows["probability"] = [101, 104, 105, 108], [0.1, 0.3, 0.2, 0.4]
    found = mistakes.gallery(rows, source, 3)
    assert read == [104, 105, 108]
    assert found.worst["index"].tolist() == [108, 104, 105]
    expected = np.round(np.clip(images[[8, 4, 5], :, :, 0], 0, 1) * 255)
    assert found.images.dtype == np.uint8
    np.testing.assert_array_equal(found.images, expected)


def test_summary_lines_by_hand():
    counts = confusion(LABELS, READ)
    assert list(lines(counts, 250)) == [
        "digits   0 100%, 1 0%, 4 20.0%, 7 100%, 9 50.0%",
        "mistakes 4 read as 9: 3, 1 read as 9: 1, 4 read as 1: 1, 9 read as 4: 1",
    ]
    assert list(lines(counts, 40)) == [
        "digits   0 100%, 1 0%, 4 20.0%, 7 100%,",
        "         9 50.0%",
        "mistakes 4 read as 9: 3, 1 read as 9: 1,",
        "         4 read as 1: 1, 9 read as 4: 1",
    ]
    assert list(lines(confusion(READ, READ), 250)) == []
    many = np.eye(10, dtype=int) * 50_000
    many[0] = [0, 900, 800, 70_000, 600, 500, 0, 40, 0, 30]
    assert list(lines(many, 250))[1] == (
        "mistakes 0 read as 3: 70,000, 0 read as 1: 900, 0 read as 2: 800, 0 read as 4: 600, "
        "0 read as 5: 500, 2 other pairs: 70"
    )
    many[0, 9] = 0
    assert list(lines(many, 250))[1].endswith(", 1 other pair: 40")


def test_shares_are_never_rounded_to_0_or_100_percent():
    assert [share(part) for part in (0, 1e-9, 0.5, 0.98765, 1 - 1e-9, 1)] == [
        "0%", "0.1%", "50.0%", "98.8%", "99.9%", "100%",
    ]  # fmt: skip
    assert share(0.99999999, 2) == "99.99%"
    assert [probability(p) for p in (1e-9, 0.0004999, 0.25, 0.99949, 0.9995, 1.0)] == [
        "<0.1%", "<0.1%", "25.0%", "99.9%", ">99.9%", ">99.9%",
    ]  # fmt: skip


@pytest.fixture
def data(tmp_path):
    """Return a file of digits, some with wrong labels, so that there are enough mistakes."""
    path = tmp_path / "digits.h5"
    with h5py.File(DIGITS) as source, h5py.File(path, "w") as file:
        file["x"], labels = source["x"][:N], source["y"][:N].reshape(-1).astype(np.int64)
        labels[::7] = (labels[::7] + 3) % 10
        file["y"] = labels
    return path


def listed(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("files", [1, 2])
def test_listed_mistakes_agree_with_labels_and_scores(data, tmp_path, files):
    listing, output, given = tmp_path / "wrong.csv", tmp_path / "labels.csv", [data]
    if files == 2:
        with h5py.File(data) as file:
            ends = [{k: v[part] for k, v in file.items()} for part in (slice(50), slice(50, N))]
        given = [hdf5(tmp_path / f"{k}.h5", **part) for k, part in enumerate(ends)]
    asked = ["infer", *given, *CPU, "--skip", 31, "--limit", 150, "--errors", listing]
    assert run(*asked, "--output", output, "--scores").exit_code == 0
    with h5py.File(data) as file:
        truth = file["y"][()]
    expected = []
    for row in listed(output):
        index, label = int(row["index"]), int(row["label"])
        powers = np.exp(np.array([float(row[f"score{k}"]) for k in range(10)]))
        shares = powers / powers.sum()
        if label != truth[index]:
            order = np.argsort(-shares)
            assert order[0] == label
            expected.append((index, truth[index], label, order[1], shares, truth[index]))
    rows = listed(listing)
    assert list(rows[0]) == [
        "index", "file", "label", "predicted", "probability", "label_probability", "runner_up",
        "runner_up_probability",
    ]  # fmt: skip
    assert len(rows) == len(expected) > 20
    for row, (index, is_, read, second, shares, _) in zip(rows, expected, strict=True):
        found = [int(row[name]) for name in ("index", "label", "predicted", "runner_up")]
        assert found == [index, is_, read, second]
        second_file = index >= 50 and files == 2
        assert row["file"] == f"{given[second_file]}[{index - 50 * second_file}]"
        found = [float(row[f"{name}probability"]) for name in ("", "label_", "runner_up_")]
        np.testing.assert_allclose(found, shares[[read, is_, second]], rtol=1e-5)


@pytest.mark.parametrize("floats", [False, True])
def test_streamed_images_give_the_same_mistakes(data, tmp_path, monkeypatch, floats):
    """The list and the pictures equal those of a file that is read whole."""
    path, whole = data, job.infer(asked(data))
    with h5py.File(data) as file:
        images, labels = file["x"][()].reshape(-1, 28, 28), file["y"][()]
    if floats:
        shares = images.astype(np.float32)[..., None] / 255
        path = hdf5(tmp_path / "floats.h5", x=shares, y=labels)
    monkeypatch.setattr(job, "WHOLE_BYTES", 0)
    monkeypatch.setattr(source_module, "EARLY_BYTES", 0)
    outcome = job.infer(asked(path, batch=50))
    assert outcome.streamed and outcome.scores is None
    for name in ("index", "label", "predicted", "runner_up"):
        np.testing.assert_array_equal(outcome.mistakes.rows[name], whole.mistakes.rows[name])
    np.testing.assert_allclose(
        outcome.mistakes.rows["probability"], whole.mistakes.rows["probability"], rtol=1e-4
    )
    np.testing.assert_array_equal(outcome.mistakes.images, images[outcome.mistakes.worst["index"]])


def asked(path, **options):
    return Request(data=path, device="cpu", plan="tiled", mistakes=True, **options)


@pytest.mark.parametrize(("output", "large"), [(False, True), (True, False)])
def test_ctrl_c_keeps_mistakes_found_so_far(data, tmp_path, monkeypatch, large, output):
    whole = job.infer(asked(data)).mistakes.rows
    if large:
        monkeypatch.setattr(job, "WHOLE_BYTES", 0)
        monkeypatch.setattr(source_module, "EARLY_BYTES", 0)

    def stop(done, total):
        if done >= 100:
            raise KeyboardInterrupt

    target = tmp_path / "labels.npy" if output else None
    outcome = job.infer(asked(data, batch=50), stop, target)
    assert outcome.interrupted and 100 <= outcome.done < N
    assert 0 < len(outcome.mistakes.rows) == (outcome.labels != outcome.truth).sum()
    names = ["index", "label", "predicted"]
    expected = whole[whole["index"] < outcome.done][names]
    np.testing.assert_array_equal(outcome.mistakes.rows[names], expected)


def test_ctrl_c_while_writing_drops_unwritten_mistakes(data, tmp_path, monkeypatch):
    """Mistakes among labels that never reached the file do not count."""
    whole, plain = job.infer(asked(data)).mistakes.rows, LabelWriter.write

    def write(self, labels, scores=None):
        if self.done < 100:
            return plain(self, labels, scores)
        plain(self, labels[:20], scores)
        raise KeyboardInterrupt

    monkeypatch.setattr(LabelWriter, "write", write)
    monkeypatch.setattr(job, "WHOLE_BYTES", 0)
    outcome = job.infer(asked(data, batch=50), output=tmp_path / "labels.npy")
    assert outcome.done == len(np.load(tmp_path / "labels.npy")) == 120
    np.testing.assert_array_equal(
        outcome.mistakes.rows["index"], whole["index"][whole["index"] < 120]
    )
    assert any((whole["index"] >= 120) & (whole["index"] < 150))


def test_summary_shows_mistakes_if_any(data):
    result = run("infer", data, *CPU)
    said = result.stdout.splitlines()
    place = next(n for n, line in enumerate(said) if line.startswith("accuracy "))
    outcome = job.infer(asked(data))
    assert said[place + 1 : place + 3] == list(lines(outcome.counts, 250))
    assert said[place + 3].startswith("elapsed ")
    result = run("infer", "--limit", 20, *CPU)
    assert "accuracy 20/20" in result.stdout
    assert "digits  " not in result.stdout and "mistakes" not in result.stdout


def test_mistakes_without_labels_are_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(job.Engine, "start", lambda *_: pytest.fail("begun"))
    path, target = tmp_path / "x.npy", tmp_path / "wrong.csv"
    np.save(path, np.zeros((3, 28, 28), np.uint8))
    refused(
        run("infer", path, *CPU, "--errors", target),
        f"--errors: expected labels in {path}, found none",
    )
    assert not target.exists()


@pytest.mark.parametrize(("name", "found"), [("wrong.pdf", ".pdf"), ("-", "no ending")])
def test_other_file_endings_are_refused_at_once(tmp_path, monkeypatch, name, found):
    monkeypatch.setattr("lenetgpu.lab.infer.infer", lambda *_: pytest.fail("computed"))
    monkeypatch.chdir(tmp_path)
    words = f"--errors {name}: expected a name ending in .png, .html or .csv, found {found}"
    refused(run("infer", *CPU, "--errors", name), words)


def test_missing_extra_is_reported_at_once(tmp_path, monkeypatch):
    module, ending = "vl_convert", ".png"
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda n: None if n == module else found(n))
    monkeypatch.setattr("lenetgpu.lab.infer.infer", lambda *_: pytest.fail("computed"))
    words = f"--errors: requires {module}, which is not installed; pip install 'lenetgpu[report]'"
    refused(run("infer", *CPU, "--errors", tmp_path / f"wrong{ending}"), words)
    files.check_errors(tmp_path / "wrong.csv")


def test_inputs_and_outputs_are_not_overwritten(data, tmp_path, monkeypatch):
    monkeypatch.setattr("lenetgpu.lab.infer.infer", lambda *_: pytest.fail("computed"))
    (tmp_path / "link.csv").symlink_to(data)
    refused(run("infer", data, *CPU, "--errors", tmp_path / "link.csv"), "other than the inputs")
    same = tmp_path / "same.csv"
    for option in ("--output", "--json"):
        refused(run("infer", *CPU, "--errors", same, option, same), "one result per output")
    refused(run("infer", *CPU, "--errors", tmp_path / "no" / "x.csv"), "does not exist; create it")
