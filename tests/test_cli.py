"""The command line as a user meets it."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys

import click
import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.gpu import device
from lenetgpu.network import STAGE_NAMES


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def refused(result, *parts):
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("lenetgpu: error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    for part in parts:
        assert part in result.stderr


def test_the_main_job():
    result = run("infer", "--batch", 10_000, "--device", "cpu")
    assert result.exit_code == 0
    assert "accuracy 9,822/10,000 = 98.22%" in result.output
    assert "images/s" in result.output
    for phase in ("import", "compile", "load", "pass"):
        assert phase in result.output


def test_json_schema():
    words = ["--device", "cpu", "--plan", "tiled", "--timing", "--json", "-"]
    result = run("infer", "--limit", 300, *words)
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    assert document["command"] == "infer"
    assert document["images"] == document["batch"] == 300
    assert document["device"]["kind"] == "cpu"
    assert document["precision"] == "fp32"
    assert [name for slot in document["plan"] for name in slot["stages"]] == list(STAGE_NAMES)
    timing = document["timing_ms"]
    assert set(timing) == {
        "import", "context", "choose", "schedule", "compile", "verify", "load", "copy", "first",
        "compute", "end_to_end",
    }  # fmt: skip
    for name in ("compute", "end_to_end"):
        entry = timing[name]
        assert 0 < entry["p05"] <= entry["median"] <= entry["p95"]
        assert len(entry["samples"]) >= 1
    assert document["images_per_second"] == pytest.approx(3e5 / timing["end_to_end"]["median"])
    total = sum(row["median_ms"] for row in document["stages"])
    for row in document["stages"]:
        assert 0 < row["share"] == pytest.approx(row["median_ms"] / total)
    rows = {row["name"]: row for row in document["stages"]}
    assert next(iter(rows)) == "input"
    assert rows["conv2"]["gflop"] == pytest.approx(2 * 300 * 3_276_800 / 1e9)


@pytest.mark.parametrize("ending", [".npy", ".csv", ".h5", ".json"])
@pytest.mark.parametrize("scores", [False, True])
def test_output_files(tmp_path, ending, scores):
    path = tmp_path / f"labels{ending}"
    extra = ["--scores"] if scores else []
    result = run("infer", "--limit", 40, "--device", "cpu", "--output", path, *extra)
    assert result.exit_code == 0, result.output
    found = None
    if ending == ".npy":
        rows = np.load(path)
        labels = rows["label"] if scores else rows
        found = rows["scores"] if scores else None
    elif ending == ".csv":
        table = list(csv.DictReader(path.open()))
        labels = np.array([int(row["label"]) for row in table])
        if scores:
            found = np.array([[float(row[f"score{k}"]) for k in range(10)] for row in table])
    elif ending == ".h5":
        with h5py.File(path) as file:
            labels = file["labels"][()]
            found = file["scores"][()] if scores else None
            assert ("scores" in file) == scores
    else:
        document = json.loads(path.read_text())
        labels = np.array(document["labels"])
        found = np.array(document["scores"]) if scores else None
    assert len(labels) == 40
    if scores:
        np.testing.assert_array_equal(found.argmax(axis=1), labels)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_switching_stages_shows_what_ran():
    result = run("infer", "--limit", 20, "--device", "cpu", "--conv1", "fft", "--pool2", "serial")
    assert "conv1=fft.pocketfft" in result.output
    assert "pool2=serial.loops" in result.output


@pytest.mark.parametrize("batch", [1, 7, 33, 100])
def test_batches_give_the_same_accuracy(batch):
    result = run("infer", "--limit", 100, "--batch", batch, "--device", "cpu", "--json", "-")
    document = json.loads(result.stdout)
    whole = json.loads(run("infer", "--limit", 100, "--device", "cpu", "--json", "-").stdout)
    assert document["correct"] == whole["correct"]
    assert document["batch"] == batch


@pytest.mark.parametrize("command", ["variants", "doctor", "infer"])
def test_ctrl_c_is_130(command, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(click.Context, "invoke", stop)
    result = run(command)
    assert result.exit_code == 130
    assert result.stderr == "lenetgpu: interrupted\n"


def test_min_accuracy_decides_the_exit_code(tmp_path):
    assert run("infer", "--limit", 50, "--min-accuracy", 0.5).exit_code == 0
    low = run("infer", "--limit", 2000, "--min-accuracy", 1.0)
    assert low.exit_code == 1
    assert "--min-accuracy: expected a share of at least 1, found 1," in low.stderr
    refused(run("infer", "--limit", 50, "--min-accuracy", 1.01), "0 to 1")
    unlabelled = tmp_path / "x.h5"
    with h5py.File(unlabelled, "w") as file:
        file["x"] = np.zeros((3, 28, 28), np.uint8)
    refused(run("infer", unlabelled, "--min-accuracy", 0.5), "expected labels", str(unlabelled))


def test_data_without_labels(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((3, 28, 28), np.uint8)
    result = run("infer", path, "--device", "cpu", "--json", "-")
    document = json.loads(result.stdout)
    assert document["correct"] is None
    assert document["accuracy"] is None


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["none.h5"], ["none.h5", "found no such file"]),
        (["--weights", "none.h5"], ["none.h5", "found no such file"]),
        (["--batch", "0"], ["--batch", "at least 1", "found 0"]),
        (["--batch", "-3"], ["found -3"]),
        (["--limit", "0"], ["--limit", "found 0"]),
        (["--chunk", "0"], ["--chunk", "found 0"]),
        (["--streams", "0"], ["--streams", "found 0"]),
        (["--device", "cpu", "--threads", "1025"], ["--threads: expected at most 1,024", "1,025"]),
        (["--streams", "2", "--device", "cpu"], ["--streams 2", "expected a GPU"]),
        (["--plan", "quick"], ["plan 'quick'", "tiled"]),
        (["--plan", "course", "--device", "cpu"], ["plan course", "serial"]),
        (["--device", "cpu", "--conv1", "prefetch"], ["conv1", "'prefetch'", "tiled"]),
        (["--device", "cpu", "--argmax", "fft"], ["argmax", "'fft'", "no sum; choose", "serial"]),
        (["--device", "cpu", "--conv2", "direct.basic"], ["direct.basic", "needs a GPU"]),
        (["--device", "tpu"], ["device 'tpu'", "cuda:K"]),
        (["--device", "cuda:"], ["device 'cuda:'"]),
        (["--precision", "fp16", "--device", "cpu"], ["precision 'fp16'", "fp32"]),
        (["--output", "labels.txt"], ["labels.txt", ".npy"]),
        (["--output", "none/labels.npy"], ["none/labels.npy", "folder"]),
        (["--json", "none/out.json"], ["none/out.json", "folder"]),
    ],
)
def test_bad_input(arguments, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(run("infer", *arguments), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["infer", "{data}", "--output", "{same}"], "data"),
        (["infer", "{data}", "--json", "{same}"], "data"),
        (["infer", "{data}", "--weights", "{weights}", "--output", "{same}"], "weights"),
        (["profile", "{data}", "--csv", "{same}"], "data"),
        (["profile", "{data}", "--weights", "{weights}", "--trace", "{same}"], "weights"),
        (["data", "convert", "{data}", "{same}"], "data"),
        (["weights", "convert", "{weights}", "{same}"], "weights"),
    ],
)
@pytest.mark.parametrize("by", ["name", "way", "link"])
def test_what_is_read_is_not_written(words, read, by, tmp_path, weight_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "x.h5"
    with h5py.File(data, "w") as file:
        file["x"] = np.zeros((3, 28, 28), np.uint8)
    source = {"data": data, "weights": weight_file}[read]
    (tmp_path / "link.h5").symlink_to(source)
    ways = {"name": source, "way": os.path.relpath(source), "link": "link.h5"}
    before = source.read_bytes()
    names = {"data": data, "weights": weight_file, "same": ways[by]}
    result = run(*(word.format(**names) for word in words))
    refused(result, "expected another file to write than those that are read", str(source))
    assert source.read_bytes() == before


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize(
    "words",
    [["infer", "--json"], ["profile", "--trace"], ["data", "convert"]],
    ids=lambda words: words[-1],
)
def test_labels_beside_images_are_not_written(words, end, tmp_path):
    images = tmp_path / f"t10k-images-idx3-ubyte{end}"
    labels = tmp_path / f"t10k-labels-idx1-ubyte{end}"
    opened = gzip.open if end else open
    for path, header in ((images, [0x803, 3, 28, 28]), (labels, [0x801, 3])):
        with opened(path, "wb") as file:
            file.write(np.array(header, ">i4").tobytes() + bytes(3 if path == labels else 3 * 784))
    before = labels.read_bytes()
    command, option = (words[:1], words[1:]) if words[-1].startswith("-") else (words, [])
    result = run(*command, str(images), *option, str(labels))
    refused(result, "expected another file to write than those that are read", str(labels))
    assert labels.read_bytes() == before


def test_nothing_is_written_when_the_weights_are_bad(tmp_path, weight_file):
    with h5py.File(weight_file, "a") as file:
        file["fc2"][3, 4] = np.nan
    target, report = tmp_path / "labels.npy", tmp_path / "out.json"
    result = run("infer", "--weights", weight_file, "--output", target, "--json", report)
    refused(result, str(weight_file), "/fc2", "1 that are NaN")
    assert not target.exists()
    assert not report.exists()


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(device, "driver_gpus", lambda: ())
    refused(run("infer", "--device", "cuda"), "expected an NVIDIA GPU", "found none")
    result = run("infer", "--limit", 10)
    assert result.exit_code == 0
    assert "no NVIDIA GPU found" in result.output


def test_a_gpu_without_cupy(monkeypatch):
    gpu = device.Gpu(0, "NVIDIA Test", 90)
    monkeypatch.setattr(device, "begin", lambda wanted: None)
    monkeypatch.setattr(device, "driver_gpus", lambda: (gpu,))
    monkeypatch.setattr(device, "cupy_installed", lambda: False)
    refused(run("infer", "--device", "cuda"), "expected CuPy", "lenetgpu[cuda13]")
    refused(run("infer", "--device", "cuda:3"), "expected one of cuda:0")
    result = run("infer", "--limit", 10)
    assert result.exit_code == 0
    assert "CuPy is missing" in result.output


def test_variants_of_a_stage_and_of_none_such():
    conv = run("variants", "conv2")
    assert "unrolled.tiled" in conv.output
    assert "fully_forward_tile" not in conv.output
    document = json.loads(run("variants", "argmax", "--json").stdout)
    assert {row["kind"] for row in document["variants"]} == {"argmax", "classifier"}
    refused(run("variants", "conv3"), "conv3", "conv1")


def test_doctor():
    text = run("doctor").output
    for word in ("cpu", "gpu", "cupy", "nvrtc", "driver", "nvml", "auto fp32"):
        assert f"\n{word} " in text
    assert json.loads(run("doctor", "--json").stdout)["command"] == "doctor"


def test_doctor_says_whether_clocks_and_power_can_be_read(monkeypatch):
    from lenetgpu.gpu import nvml
    from lenetgpu.lab import doctor

    there = {"pynvml": True}
    find = importlib.util.find_spec
    monkeypatch.setattr(
        doctor.importlib.util, "find_spec", lambda name: there.get(name, find(name))
    )
    monkeypatch.setattr(nvml, "nvml_version", lambda: "13.580.159.04")
    assert dict(doctor.findings())["nvml"] == "13.580.159.04"
    monkeypatch.setattr(nvml, "nvml_version", lambda: None)
    assert "not found" in dict(doctor.findings())["nvml"]
    there["pynvml"] = None
    assert "nvidia-ml-py not installed" in dict(doctor.findings())["nvml"]


@pytest.mark.parametrize(
    "arguments",
    [["doctor", "--json"], ["variants", "argmax", "--json"],
     ["infer", "--limit", "5", "--device", "cpu", "--json", "-"]],
)  # fmt: skip
def test_every_document_says_what_made_it(arguments):
    made = json.loads(run(*arguments).stdout)
    assert set(made) >= {
        "version", "commit", "python", "numpy", "numba", "cupy", "driver", "cuda_driver", "nvrtc",
    }  # fmt: skip
    said = re.search(r'__version__ = "(.+)"', (ROOT / "lenetgpu" / "__init__.py").read_text())
    assert made["version"] == said[1]
    assert made["numpy"].split()[0] == np.__version__
    assert made["python"] == platform.python_version()


def test_info_commands(weight_file):
    assert "10,000 of 28x28, uint8" in run("data", "info").output
    assert "/conv2" in run("weights", "info").output
    assert run("weights", "verify", weight_file).exit_code == 0
    refused(run("weights", "verify", assets.default_digits()), "/conv1")


def test_warmup():
    assert "variants ready for cpu" in run("warmup", "--device", "cpu").output


def test_fetch_mnist_says_which_mirror_failed(tmp_path):
    result = run("data", "fetch-mnist", tmp_path / "m", "--mirror", "http://127.0.0.1:9/")
    refused(result, "train-images-idx3-ubyte.gz", "http://127.0.0.1:9/")
    assert not (tmp_path / "m").exists()


def test_fetch_mnist_checks_the_pinned_sum(tmp_path, monkeypatch, mnist):
    from lenetgpu.files import mnist as fetcher

    def serve(url, *_):
        return (mnist / url.rsplit("/", 1)[1]).read_bytes()

    monkeypatch.setattr(fetcher, "_download", serve)
    said = []
    paths = fetcher.fetch_mnist(tmp_path, ("http://mirror/",), said.append)
    assert all(path.is_file() for path in paths)
    monkeypatch.setattr(fetcher, "_download", lambda *_: pytest.fail("downloaded again"))
    fetcher.fetch_mnist(tmp_path, ("http://mirror/",), said.append)
    assert said[-1].endswith("already here")
    paths[0].unlink()
    monkeypatch.setattr(fetcher, "_download", lambda *_: paths[1].read_bytes())
    with pytest.raises(LenetError, match="is not the pinned"):
        fetcher.fetch_mnist(tmp_path, ("http://mirror/",))
    assert not paths[0].exists()


def test_help_imports_next_to_nothing():
    """Guards the tenth of a second in which --help and completion answer: NumPy would double it,
    Numba take half a second. Modules are counted, because a clock is wrong on a busy machine.
    """
    code = (
        "import atexit, runpy, sys; before = set(sys.modules); sys.argv[1:] = ['--help']; "
        "atexit.register(lambda: print(*set(sys.modules) - before, sep='\\n', file=sys.stderr)); "
        "runpy.run_module('lenetgpu', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "lenetgpu [OPTIONS] COMMAND" in done.stdout
    added = set(done.stderr.split())
    ours = {name for name in added if name.split(".")[0] == "lenetgpu"}
    assert {name for name in ours if not name.startswith("lenetgpu.cli")} == {
        "lenetgpu", "lenetgpu.errors",
    }  # fmt: skip
    assert {name.split(".")[0] for name in added - ours} - sys.stdlib_module_names == {"click"}
    assert len(added) < 110


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(shell):
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_LENETGPU_COMPLETE" in result.output


def test_a_usage_error_has_code_2():
    assert run("infer", "--batch", "many").exit_code == 2
    assert run("nothing").exit_code == 2


def test_links_are_followed_and_files_are_readable(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("{}")
    link.symlink_to(real)
    assert run("infer", "--limit", 5, "--device", "cpu", "--json", link).exit_code == 0
    assert link.is_symlink()
    assert json.loads(real.read_text())["images"] == 5
    mask = os.umask(0)
    os.umask(mask)
    assert real.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_pipe_is_written_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert run("infer", "--limit", 5, "--device", "cpu", "--json", pipe).exit_code == 0
        out, _ = reader.communicate(timeout=30)
    assert json.loads(out)["images"] == 5
    assert not pipe.is_file()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["infer", "--limit", "5", "--device", "cpu", "--output", "/proc/x.npy"], ["/proc/x.npy"]),
        (["infer", "--json", "a.json", "--output", "a.json"], ["a.json", "found two"]),
        (["profile", "--json", "-", "--csv", "-"], ["stdout", "found two"]),
        (["infer", "--min-accuracy", "nan"], ["--min-accuracy", "0 to 1"]),
        (["infer", "--device", "cuda:²"], ["cuda:²", "cuda:K"]),
        (["infer", "--conv1", ""], ["conv1", "''"]),
        (["infer", "--batch", "many"], ["many"]),
        (["infer", "--nosuch"], ["--nosuch"]),
        (["nothing"], ["nothing"]),
        (["compare", "fc1", "--seconds", "nan"], ["--seconds", "nan"]),
        (["compare", "--suite", "report", "--reference", "x"], ["--suite", "--reference"]),
        (["data", "fetch-mnist", "/proc/none/x"], ["/proc/none/x"]),
    ],
)
def test_more_bad_input_is_one_sentence(arguments, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(run(*arguments), *parts)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_used_is_done_without(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("LENETGPU_CACHE", str(blocked))
    result = run("profile", "--limit", 5, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert blocked.read_text() == ""


class CUDARuntimeError(RuntimeError):
    """As CuPy's, by name and status."""

    status = 2


@pytest.mark.parametrize("error", [MemoryError, CUDARuntimeError])
def test_running_out_of_memory_is_one_sentence(error, monkeypatch):
    from lenetgpu.lab import infer as inference

    def exhaust(*arguments):
        raise error("Unable to allocate 730. GiB")

    monkeypatch.setattr(inference, "open_source", exhaust)
    refused(run("infer"), "memory: expected", "730. GiB")
