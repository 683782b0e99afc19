"""The command line from a user's point of view."""

import gzip
import json
import platform
import re
import shlex
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT
from stored import hdf5
from terminal import python, refused, run

from lenetgpu.files import assets
from lenetgpu.gpu import device
from lenetgpu.lab import infer as inference
from lenetgpu.lab.compare import CompareOutcome
from lenetgpu.measure.outcome import Outcome
from lenetgpu.network import STAGE_NAMES


def test_infer_prints_accuracy_and_times():
    result = run("infer", "--batch", 10_000, "--device", "cpu", code=0)
    for words in ("accuracy 9,822/10,000 = 98.22%", "images/s", "import", "compile", "load"):
        assert words in result.output


def test_infer_json_schema():
    words = ["--device", "cpu", "--plan", "tiled", "--timing", "--json", "-"]
    document = json.loads(run("infer", "--limit", 300, *words).stdout)
    assert document["schema"] == 1
    assert document["command"] == "infer"
    assert document["images"] == document["batch"] == 300
    assert document["device"]["kind"] == "cpu"
    assert document["precision"] == "fp32"
    assert [name for slot in document["plan"] for name in slot["stages"]] == list(STAGE_NAMES)
    timing = document["timing_ms"]
    assert set(timing) == {
        "start", "import", "context", "choose", "schedule", "compile", "verify", "load", "copy",
        "first", "compute", "end_to_end",
    }  # fmt: skip
    for name in ("compute", "end_to_end"):
        entry = timing[name]
        assert 0 < entry["p05"] <= entry["median"] <= entry["p95"]
    assert document["images_per_second"] == pytest.approx(3e5 / timing["end_to_end"]["median"])
    rows = {row["name"]: row for row in document["stages"]}
    total = sum(row["median_ms"] for row in rows.values())
    assert all(row["share"] == pytest.approx(row["median_ms"] / total) for row in rows.values())
    assert next(iter(rows)) == "input"
    assert rows["conv2"]["gflop"] == pytest.approx(2 * 300 * 3_276_800 / 1e9)


def test_overridden_stages_are_printed():
    result = run("infer", "--limit", 20, "--device", "cpu", "--conv1", "fft", "--pool2", "serial")
    assert "conv1=fft.pocketfft" in result.output
    assert "pool2=serial.loops" in result.output


def test_infer_of_data_without_labels(tmp_path):
    path = hdf5(tmp_path / "x.h5", x=np.zeros((3, 28, 28), np.uint8))
    document = json.loads(run("infer", path, "--device", "cpu", "--json", "-").stdout)
    assert document["correct"] is document["accuracy"] is None
    refused(run("infer", path, "--min-accuracy", 0.5), "expected labels", str(path))


REFUSED = (ROOT / "tests" / "refused.txt").read_text().splitlines()[1:]


@pytest.mark.parametrize("line", REFUSED)
def test_invalid_arguments_are_refused_in_one_sentence(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, _, parts = line.partition(" => ")
    refused(run(*shlex.split(words)), *parts.split(" | "))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        "infer {data} --output {data}",
        "infer {data} --json {link}",
        "infer --weights {data} --output {data}",
        "profile {data} --trace {data}",
        "data convert {data} {link}",
        "weights convert {data} {data}",
    ],
)
def test_input_files_are_not_overwritten(words, tmp_path):
    link, data = tmp_path / "link.h5", hdf5(tmp_path / "x.h5", x=np.zeros((3, 28, 28), np.uint8))
    link.symlink_to(data)
    before = data.read_bytes()
    result = run(*words.format(data=data, link=link).split())
    refused(result, "expected an output file other than the inputs", str(data))
    assert data.read_bytes() == before


@pytest.mark.parametrize("end", ["", ".gz"])
def test_label_file_of_images_is_not_overwritten(end, tmp_path):
    images = tmp_path / f"t10k-images-idx3-ubyte{end}"
    labels = tmp_path / f"t10k-labels-idx1-ubyte{end}"
    opened = gzip.open if end else open
    for path, header in ((images, [0x803, 3, 28, 28]), (labels, [0x801, 3])):
        with opened(path, "wb") as file:
            file.write(np.array(header, ">i4").tobytes() + bytes(3 if path == labels else 3 * 784))
    before = labels.read_bytes()
    for words in (["infer", images, "--json", labels], ["data", "convert", images, labels]):
        refused(run(*words), "expected an output file other than", str(labels))
    assert labels.read_bytes() == before


def test_missing_or_unusable_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(device, "driver_gpus", lambda: ())
    refused(run("infer", "--device", "cuda"), "expected an NVIDIA GPU", "found none")
    assert "no NVIDIA GPU found" in run("infer", "--limit", 10).output
    monkeypatch.setattr(device, "begin", lambda wanted: None)
    monkeypatch.setattr(device, "driver_gpus", lambda: (device.Gpu(0, "NVIDIA Test", 90),))
    monkeypatch.setattr(device, "cupy_installed", lambda: False)
    refused(run("infer", "--device", "cuda"), "requires CuPy", "lenetgpu[cuda13]")
    refused(run("infer", "--device", "cuda:3"), "expected one of cuda:0")
    assert "CuPy is missing" in run("infer", "--limit", 10).output


def test_doctor_lists_every_component():
    text = run("doctor").output
    for word in ("cpu", "gpu", "cupy", "nvrtc", "driver", "nvml", "auto fp32"):
        assert f"\n{word} " in text


@pytest.mark.parametrize("words", ["doctor --json", "infer --limit 5 --device cpu --json -"])
def test_json_documents_have_provenance(words):
    made = json.loads(run(*words.split()).stdout)
    assert set(made) >= {
        "version", "commit", "python", "numpy", "numba", "cupy", "driver", "cuda_driver", "nvrtc",
    }  # fmt: skip
    said = re.search(r'__version__ = "(.+)"', (ROOT / "lenetgpu" / "__init__.py").read_text())
    assert made["version"] == said[1]
    assert made["python"] == platform.python_version()


def test_info_commands(weight_file):
    assert "10,000 of 28x28, uint8" in run("data", "info").output
    assert "/conv2" in run("weights", "info").output
    assert run("weights", "verify", weight_file).exit_code == 0
    refused(run("weights", "verify", assets.default_digits()), "conv1", "found x of shape")


def test_warmup_prepares_variants():
    assert "variants ready for cpu" in run("warmup", "--device", "cpu").output


def test_help_imports_few_modules():
    """Guard the 0.1 s of --help and completion; NumPy would double it. Timings are unreliable."""
    code = (
        "import atexit, runpy, sys; before = set(sys.modules); sys.argv[1:] = ['--help']; "
        "atexit.register(lambda: print(*set(sys.modules) - before, sep='\\n', file=sys.stderr)); "
        "runpy.run_module('lenetgpu', run_name='__main__', alter_sys=True)"
    )
    done = python("-c", code)
    assert "lenetgpu [OPTIONS] COMMAND" in done.stdout
    added = set(done.stderr.split())
    ours = {name for name in added if name.split(".")[0] == "lenetgpu"}
    assert {name for name in ours if not name.startswith("lenetgpu.cli")} == {
        "lenetgpu", "lenetgpu.errors", "lenetgpu.ini",
    }  # fmt: skip
    assert {name.split(".")[0] for name in added - ours} - sys.stdlib_module_names == {"click"}
    assert len(added) < 110


class CUDARuntimeError(RuntimeError):
    """Stand-in for CuPy's exception, with its name and status."""

    status = 2


@pytest.mark.parametrize("error", [MemoryError, CUDARuntimeError])
def test_out_of_memory_is_one_sentence(error, monkeypatch):
    def exhaust(*arguments):
        raise error("Unable to allocate 730. GiB")

    monkeypatch.setattr(inference, "open_source", exhaust)
    refused(run("infer"), "memory: expected", "730. GiB")


def test_compare_fails_on_wrong_or_lost_candidates():
    for wrong, lost in (([], []), (["x"], []), ([], ["x"])):
        outcome = CompareOutcome({}, wrong, lost)
        assert outcome.failed == bool(outcome.sentences()) == bool(wrong or lost)


@pytest.mark.parametrize(
    ("least", "correct", "low"),
    [(None, 0, False), (0.5, 5, False), (0.5, 4, True), (1.0, 10, False), (0.0, 0, False)],
)
def test_min_accuracy_is_inclusive(least, correct, low):
    outcome = SimpleNamespace(request=SimpleNamespace(min_accuracy=least), done=10, correct=correct)
    assert Outcome.too_low.fget(outcome) == low
