"""Peers from host memory, of one image and of fresh processes: the scripts without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from lenetgpu.gpu.device import driver_gpus
from lenetgpu.net.streaming.schedule import EVEN, Schedule

NAMES = ("peers", "device_peers", "end_to_end", "one_image", "cold_start", "cpu_peers", "beside",
         "host_tables", "peer_tables", "measured")  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cold", "--rounds", "3"], "--rounds: expected at least 7, found 3"),
        (["--cold", "--device", "tpu"], "cold_start: error: device 'tpu': expected auto"),
        (["--cpu", "--rounds", "6", "--images", "5"], "--rounds: expected at least 7, found 6"),
        (["--one", "--rounds", "9"], "--rounds: expected 2000 calls, found 900"),
    ],
)
def test_a_flag_chooses_the_comparison_and_the_rest_is_its_own(script, words, said):
    done = CliRunner().invoke(script("peers").main, words)
    assert done.exit_code == 2 and said in done.output


@pytest.mark.skipif(bool(driver_gpus()), reason="a GPU is there")
@pytest.mark.parametrize("flag", ["--one", "--end-to-end"])
def test_without_a_gpu_it_is_said(script, flag):
    done = CliRunner().invoke(script("peers").main, [flag])
    assert done.exit_code == 2 and "expected an NVIDIA GPU" in done.output


def contestant(script, name, maker, samples, answer=lambda: np.arange(4)):
    precision = "" if maker in ("bus", "floor") else "fp16"
    one = script("beside").Contestant(name, maker, precision, lambda: None, answer)
    one.samples = samples
    one.facts |= {"flips": 0, "judged": 4}
    return one


def test_the_bare_copy_is_that_of_the_same_round(script):
    """The median of the ratios, which is not the ratio of the medians."""
    rows = script("end_to_end").rows_of(
        [
            contestant(script, "copy", "bus", [1.0, 2.0, 10.0]),
            contestant(script, "lenetgpu fp16", "lenetgpu", [2.0, 3.0, 12.0]),
            contestant(script, "torch", "torch", [6.0, 6.0, 6.0]),
        ]
    )
    found = {row["name"]: row for row in rows}
    assert found["lenetgpu fp16"]["over_copy"] == 1.5 and found["copy"]["over_copy"] == 1
    assert found["lenetgpu fp16"]["times_faster"] == 2


def test_who_labels_otherwise_or_copies_other_bytes_is_not_timed(script):
    right = contestant(script, "right", "lenetgpu", [])
    wrong = contestant(script, "wrong", "lenetgpu", [], lambda: np.arange(4)[::-1])
    copied = contestant(script, "copy", "bus", [], lambda: np.ones(4, bool))
    lost = contestant(script, "lost", "bus", [], lambda: np.arange(4) > 0)
    said = []
    kept = script("end_to_end").check([right, wrong, copied, lost], np.arange(4), said.append)
    assert [one.name for one in kept] == ["right", "copy"]
    assert said == ["wrong: WRONG, 4 of 4 differ; not timed",
                    "lost: WRONG, 1 of 4 differ; not timed"]  # fmt: skip


def test_a_pinned_array_repeats_the_images(script, monkeypatch):
    module = script("end_to_end")
    monkeypatch.setattr(module, "pinned_empty", np.empty)
    images = np.arange(3 * 784, dtype=np.uint8).reshape(3, 28, 28, 1)
    found = module.pinned_times(images, 8)
    np.testing.assert_array_equal(found, images[[0, 1, 2, 0, 1, 2, 0, 1]])


def test_packed_images_are_the_same_images(script, monkeypatch):
    module = script("end_to_end")
    monkeypatch.setattr(module, "pinned_copy", np.array)
    images = np.random.default_rng(0).integers(0, 2, (5, 28, 28, 1), dtype=np.uint8)
    found = module.packed_of(images)
    out = np.empty_like(images)
    found.read(0, out)
    np.testing.assert_array_equal(out, images)


def test_ours_has_the_whole_schedule_that_the_model_chose(script, monkeypatch):
    module = script("end_to_end")
    chosen = Schedule(3, 2_000, 0.1, 0.25, zero_copy=True)

    def streamer(make, chunk, streams=1, device=None, taper=EVEN, zero_copy=False):
        return SimpleNamespace(chunk=chunk, streams=streams, taper=taper, zero_copy=zero_copy)

    monkeypatch.setattr(module, "resolve", lambda name, device, gpu: None)
    monkeypatch.setattr(module, "schedule_for", lambda *found, image_bytes: chosen)
    monkeypatch.setattr(module, "host_results", lambda n, with_scores: (np.empty(n, "i4"), None))
    monkeypatch.setattr(module, "Streamer", streamer)
    for one in module.ours(None, np.empty((9, 28, 28, 1), np.uint8), None, print):
        made = one.keep[0]
        assert Schedule(made.streams, made.chunk, 0.1, made.taper, made.zero_copy) == chosen


def test_every_call_has_the_next_digit_and_its_label_is_looked_at(script):
    module = script("one_image")
    images, truth = np.arange(5), np.array([3, 1, 4, 1, 5])
    asked = []

    def label(i):
        asked.append(i)
        return truth[i]

    right = module.Calls(("right", "lenetgpu", "fp16", label, None), images, truth)
    wrong = module.Calls(("wrong", "torch", "fp16", lambda i: 1, None), images, truth)
    said = []
    kept = module.measure([right, wrong], 3, 4, said.append)
    assert [one.name for one in kept] == ["right"]
    facts = kept[0].facts
    assert (facts["calls"], facts["flips"], len(kept[0].samples)) == (12, 0, 3)
    assert 0 < facts["call_median_ms"] <= facts["call_p99_ms"] <= facts["call_worst_ms"]
    assert asked == [0, 0, 1, 2, 3, 4, 4, 0, 1, 2, 3, 3, 4, 0, 1, 2, 2, 3, 4, 0]
    assert right.next == 16 and said[0].startswith("wrong: WRONG")


@pytest.mark.parametrize(
    ("code", "said"),
    [("raise SystemExit(3)", "exit code 3: it said nothing"),
     ("raise ValueError('why')", "exit code 1: ValueError: why")],
)  # fmt: skip
def test_a_process_that_fails_is_no_sample(script, tmp_path, code, said):
    module = script("cold_start")
    process = module.Process(tmp_path, "-c", code)
    with pytest.raises(module.ColdError, match=said):
        process.sample()
    assert process.spent == []


def test_processor_time_is_the_childs_and_bytecode_lies_apart(script, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    module = script("cold_start")
    process = module.Process(tmp_path, "-c", "import colorsys; print(sum(range(4_000_000)))")
    took = process.sample()
    assert 20 < process.spent[0] < took + 50  # processor time comes in ticks of 10 ms
    assert process.said == "7999998000000\n"
    assert list((tmp_path / "bytecode").rglob("colorsys*.pyc"))


def test_the_floor_of_a_cpu_is_what_its_plan_imports(script, tmp_path):
    """No library that `infer` itself leaves alone."""
    *_, libraries = script("cold_start").floors(tmp_path, "cpu")
    wanted = set(libraries.name.removeprefix("import ").split(", "))
    code = (
        "import sys; from lenetgpu.cli import main\n"
        "try: main(['infer', '--device', 'cpu', '--no-progress', '--limit', '3'])\n"
        "finally: print('loaded', *sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert wanted - set(ran.stdout.rpartition("loaded ")[2].split()) == set()


@pytest.mark.parametrize(
    ("maker", "found", "said"),
    [
        ("lenetgpu", np.zeros(40, int), "30 labels differ"),
        ("torch", "12 of 40\n", "28 labels differ"),
        ("torch", "39 of 39\n", "expected a count of 40 labels"),
        ("torch", "", "expected a count of 40 labels"),
    ],
)
def test_a_fresh_process_has_to_be_right(script, maker, found, said):
    module = script("cold_start")
    labels = np.arange(40) % 4
    one = contestant(script, "one", maker, [], lambda: found)
    with pytest.raises(module.ColdError, match=said):
        module.check(one, labels, labels)


ROW = {"maker": "lenetgpu", "median_ms": 0.16, "p05_ms": 0.15, "p95_ms": 0.17, "flips": 3,
       "samples_ms": [0.16] * 9}  # fmt: skip
HEAD = {"date": "2026-11-22", "commit": "abc1234", "data": "t10k", "torch": "2.11",
        "device": {"kind": "cuda", "name": "NVIDIA H200"}, "not_measured": []}  # fmt: skip


def write(script, monkeypatch, tmp_path, name, document):
    measured = script("measured")
    monkeypatch.setattr(measured, "MEASURED", tmp_path)
    target = tmp_path / "nvidia-h200" / name
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(HEAD | document))
    return script("host_tables").SECTIONS


def test_the_tables_say_what_the_files_say(script, monkeypatch, tmp_path):
    rows = [ROW | {"name": "bare copy", "maker": "bus", "over_copy": 1.0},
            ROW | {"name": "lenetgpu fp16", "over_copy": 1.25, "streams": 2, "chunk": 5_000,
                   "predicted_ms": 0.2, "peer": "torch", "times_faster": 4.0}]  # fmt: skip
    many = {"images": 1_000_000, "rows": rows}
    document = {"command": "end-to-end", "images": 10_000, "rows": rows, "many": many}
    sections = write(script, monkeypatch, tmp_path, "end_to_end.json", document)
    text = sections["end-to-end"]()
    spread, how = "**0.1600** | 0.1500 to 0.1700", "2 x 5,000 | 0.200 | 3 | 4.00x torch |"
    for ratio in ("1.25x", "80.0%"):
        assert f"| lenetgpu fp16 | {spread} | {ratio} | {how}" in text
    assert "replayed as one CUDA graph, where `infer` runs once" in text
    assert "Not measured yet" in sections["one"]()

    ways = [ROW | {"name": "slow", "calls": 4_000, "judged": 4_000, "call_median_ms": 0.03,
                   "call_p99_ms": 0.04, "call_worst_ms": 2.0},
            ROW | {"name": "quick", "calls": 4_000, "judged": 4_000, "call_median_ms": 0.0071,
                   "call_p99_ms": 0.009, "call_worst_ms": 0.1}]  # fmt: skip
    write(script, monkeypatch, tmp_path, "one.json", {"command": "one", "rows": ways})
    text = sections["one"]()
    assert "| quick | **7.1** | 9.0 | 100 | 3 of 4,000 | - |\n| slow | **30.0** |" in text

    cold = [
        ROW | {"name": "lenetgpu infer", "median_ms": 500.0, "processor_ms": 600.0},
        ROW | {"name": "torch", "maker": "torch", "median_ms": 3000.0, "processor_ms": 1.0},
    ]
    phases = {"import": 300.0, "context": 0.0}
    write(script, monkeypatch, tmp_path, "cold.json",
          {"command": "cold", "rows": cold, "phases_ms": phases})  # fmt: skip
    text = sections["cold"]()
    assert "| torch | **3,000** | 0 to 0 | 1 | 6.00x |" in text and "says: import 300 ms" in text


def test_figures_from_host_memory_name_the_kernels_that_they_ran(script):
    measured = script("measured")
    resident = "lenetgpu/stages/fused/resident/resident.cu"
    rows = [{"maker": "lenetgpu", "plan": "fp16", "sources": [resident]}, {"maker": "torch"}]
    document = {"device": {"kind": "cuda"}, "command": "one", "rows": rows}
    found = set(measured.kernels_of(document))
    assert resident in found and "lenetgpu/stages/fused/wgmma/fp16_features.cu" in found
    assert "lenetgpu/stages/conv/direct.cu" not in found
