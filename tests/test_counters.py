"""Hardware counters without a GPU: parsing ncu's output, matching launches, and showing results.

A stand-in for `ncu` that runs nothing (pretended_ncu.py) prints what each test needs.
"""

import csv
import json
import sys
import time
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pretended_ncu
import pytest
from conftest import ROOT
from rich.console import Console

from lenetgpu.check.reference import reference_stages
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.gpu.device import Gpu
from lenetgpu.lab import compare as compared
from lenetgpu.lab import counters as shown
from lenetgpu.lab import profile as profiling
from lenetgpu.lab.tables import show
from lenetgpu.measure.bench import StageBench, stage_of
from lenetgpu.measure.counters import child, document, ncu
from lenetgpu.measure.counters.child import Images, StageSpec, Work, as_json, from_json
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.rounds import Candidate, Comparison
from lenetgpu.papers.course import LADDERS, MEAN, RELU
from lenetgpu.papers.course_counters import NVVP, PASSES_OF, described, kernels_of_rows, specs
from lenetgpu.papers.course_ladder import step_rows
from lenetgpu.plan import resolve
from lenetgpu.stages import find

H200 = (ROOT / "tests" / "ncu-h200.csv").read_text()
READ, OCCUPANCY, LOADED, LOADS, SHARED, SHARED_BYTES = map(ncu.METRICS.get, (
    "dram_read_gbs", "occupancy", "load_sectors", "global_load_efficiency", "shared_efficiency",
    "shared_bytes",
))  # fmt: skip
OF_SAMPLE = {ncu.TIME: "ns", READ: "byte/s", OCCUPANCY: "%", LOADS: "%"}
GPU = Gpu(0, "Card", 90)
IMAGES = Images(assets.default_digits(), assets.default_weights(), 10_000)
KEYS = [("pool1", PASSES_OF), ("conv2", "direct.two_maps")]


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """Return a function that installs a stand-in for `ncu` with the given settings."""

    def install(**settings):
        settings = {"kernels": {PASSES_OF: ["relu_in_place", "looped_mean"]}} | settings
        pretended_ncu.install(tmp_path / "bin", monkeypatch, **settings)

    return install


@pytest.fixture
def no_ncu(monkeypatch):
    monkeypatch.setattr(ncu.shutil, "which", lambda *_, **__: None)


def few():
    return [Work("few", tuple(specs(KEYS).values())), Work.of(resolve("course", "cuda"))]


def test_ncu_output_of_an_h200_is_parsed():
    first, second = ncu.parsed(H200, OF_SAMPLE)
    assert first.kernel == second.kernel == "k" and first.blocks == 512
    assert first.values == {
        ncu.TIME: 3936, READ: 1_066_341_463_414.63, OCCUPANCY: 31.14,
        LOADS: 12.5,
    }  # fmt: skip
    assert second.values[ncu.TIME] == 3872


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ("==PROF== Connected\nNo kernels were profiled.\n", "No kernels were profiled."),
        (H200[: H200.index('"0","502"')] + '"0","502","python3"\n', "columns, found 3"),
        (H200.replace(ncu.TIME, "gpu__time.sum"), f"a column {ncu.TIME}, found none"),
        (H200.replace('"ns"', '"us"'), f"{ncu.TIME}: expected ns, found us"),
        (H200[: H200.index('"","",')], "a row of units"),
        (H200.replace('"3,936"', '"fast"'), "a number, found 'fast'"),
        (H200.replace('"(512, 1, 1)"', '"many"'), "a grid, found 'many'"),
    ],
)
def test_incomplete_ncu_output_is_refused(said, part):
    with pytest.raises(ncu.NoCounters) as error:
        ncu.parsed(said, OF_SAMPLE)
    assert part in str(error.value) and "\n" not in str(error.value)


def values(**some):
    """Return a launch's metrics; stalls are zero unless given by cause."""
    found = dict.fromkeys(ncu.UNITS, 0.0) | {ncu.TIME: 2e6, LOADED: 10.0, LOADS: 50.0}
    return found | {ncu.stall(cause): share for cause, share in some.items()}


def test_units_and_stall_shares_of_counters():
    more = {READ: 2e12, OCCUPANCY: 31.0}
    found = ncu.of_values("k", values(wait=1.0, long_scoreboard=3.0) | more)
    assert (found.ms, found.dram_read_gbs, found.occupancy) == (2.0, 2000.0, 0.31)
    assert found.global_load_efficiency == 0.5
    assert found.global_store_efficiency is found.shared_efficiency is None
    assert list(found.stalls.items()) == [("long_scoreboard", 0.75), ("wait", 0.25)]
    assert found.as_json()["top_stall"] == "long_scoreboard"
    assert found.as_json()["top_stall_share"] == 0.75
    assert ncu.of_values("k", values()).as_json()["top_stall"] is None
    assert "selected" not in ncu.CAUSES and len(set(ncu.CAUSES)) == 18


def test_kernel_counters_are_combined_by_weight():
    """By hand: 1 ms and 3 ms; 100 half-used and 300 full sectors; 128 B and 32 B a wavefront."""
    one = ncu.of_values("a", values(wait=1.0) | {
        ncu.TIME: 1e6, READ: 4e9, LOADED: 100.0, LOADS: 50.0,
        SHARED: 100.0, SHARED_BYTES: 1280.0, OCCUPANCY: 80.0,
    })  # fmt: skip
    two = ncu.of_values("b", values(drain=1.0) | {
        ncu.TIME: 3e6, READ: 8e9, LOADED: 300.0, LOADS: 100.0,
        SHARED: 25.0, SHARED_BYTES: 1280.0, OCCUPANCY: 40.0,
    })  # fmt: skip
    both = ncu.merged("both", [one, two])
    assert (both.launches, both.ms, both.dram_read_gbs) == (2, 4.0, 7.0)
    assert both.global_load_efficiency == pytest.approx(0.875)
    assert both.shared_efficiency == pytest.approx(2560 / (1280 + 5120))
    assert both.occupancy == pytest.approx(0.5)
    assert both.stalls == {"drain": 0.75, "wait": 0.25}
    assert ncu.merged("one", [one]).as_json() == one.as_json() | {"kernel": "one"}


def test_launches_are_assigned_to_sections(pretended):
    pretended(extra=["void cupy_copy<float, 4>(float*)"])
    version, ((pool, conv), course) = document.read(few(), IMAGES, GPU)
    assert version == "2025.3.1.0"
    assert [kernel.kernel for kernel in pool.kernels] == [
        "void cupy_copy<float, 4>(float*)", "relu_in_place", "looped_mean",
    ]  # fmt: skip
    assert [kernel.kernel for kernel in conv.kernels][1:] == ["k_conv2"]
    assert [section.name for section in course] == [
        "conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "argmax",
    ]  # fmt: skip
    whole = ncu.merged(conv.variant, conv.kernels)
    assert (whole.launches, whole.ms, whole.l2_gbs) == (2, 4.0, None)
    assert (whole.dram_read_gbs, whole.dram_write_gbs) == (pytest.approx(1500), 0.75)
    assert (whole.global_load_efficiency, whole.shared_efficiency) == (0.125, 0.5)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"lost": ["looped_mean"]}, "pool1 basic.in_place: expected kernel looped_mean"),
        ({"lost": [pretended_ncu.MARK]}, "expected a mark first, found kernel relu_in_place"),
        ({"extra": [pretended_ncu.MARK]}, "expected 9 sections, found number 512"),
        ({"cut": 2}, "expected it whole"),
        ({"fail": "ERR_NVGPUCTRPERM - The user", "code": 0}, "ERR_NVGPUCTRPERM"),
        ({"fail": "LibraryNotLoaded", "code": 9}, "found 9: LibraryNotLoaded"),
        ({"end": 3}, "found 3: ==PROF== Disconnected"),
    ],
)
def test_mismatched_ncu_output_is_refused(pretended, settings, part):
    pretended(**settings)
    with pytest.raises(ncu.NoCounters, match=r"^ncu") as error:
        document.read(few(), IMAGES, GPU)
    assert part in str(error.value)


def alive(pid):
    """Return True if a process runs; a zombie does not count."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_hanging_process_is_killed_with_children(tmp_path):
    pid = tmp_path / "pid"
    code = f"echo $$ >{pid}; sleep 60 >/dev/null 2>&1 & echo $! >>{pid}; wait"
    with pytest.raises(ncu.NoCounters, match="expected an end in 1 s"):
        ncu.run(["sh", "-c", code], 1, "")
    own, its = map(int, pid.read_text().split())
    for _ in range(50):
        if alive(its):
            time.sleep(0.02)
    assert not alive(own) and not alive(its)


def printed(counters, kernels):
    console = Console(width=250, file=StringIO())
    show(console, shown.parts(counters, counters["rows"], kernels))
    return console.file.getvalue()


def test_without_ncu_efficiencies_are_labelled_counted(no_ncu):
    none = Work("w", (StageSpec("fc1", "cublas.sgemm", "NC", "NC"),))
    head, works = document.find([*few(), none], IMAGES, GPU)
    assert head == {
        "source": "counted", "version": None, "images": 10_000,
        "note": "Nsight Compute: expected ncu on PATH or in CUDA's folder, found none",
    }  # fmt: skip
    conv = works[0][1]
    (figure,) = [line for line in NVVP if line.variant == "direct.two_maps"]
    loads, _ = figure.counted()
    assert conv["global_load_efficiency"] == pytest.approx(loads.efficiency, abs=5e-4)
    assert conv["global_store_efficiency"] == 0.25
    text = printed(head | {"rows": [row for rows in works for row in rows]}, True)
    assert "counted from addresses, not measured: Nsight Compute: expected ncu" in text
    assert "measured by" not in text and "DRAM" not in text
    row = next(line for line in text.splitlines() if "sgemm" in line)
    assert row.split() == ["fc1", "cublas.sgemm", "-", "-"]


def test_each_kernel_is_a_row_with_its_source(pretended):
    pretended()
    head, (rows,) = document.find(few()[:1], IMAGES, GPU)
    text = printed(head | {"rows": rows}, True)
    assert [text.count(name) for name in ("relu_in_place", "looped_mean", "k_conv2")] == [1, 1, 1]
    assert "long_scoreboard 75%, wait 25%" in text and "12.5%" in text
    assert "measured by Nsight Compute 2025.3.1.0" in text
    assert "looped_mean" not in printed(head | {"rows": rows}, False)


def test_gmma_stall_is_requested_only_on_hopper(pretended):
    assert ncu.asked(90) == ncu.UNITS and ncu.asked(89) == ncu.asked(120) == ncu.asked(75)
    assert ncu.UNITS.keys() - ncu.asked(89).keys() == {ncu.stall("gmma")}
    pretended()
    assert document.read(few(), IMAGES, Gpu(0, "Card", 86))[1][0][0].kernels


def test_works_round_trip_through_json():
    works, images, device = from_json(json.loads(json.dumps(as_json(few(), IMAGES, 3))))
    assert (works, images, device) == (few(), IMAGES, 3)
    for name in ("course", "int8", "block"):
        plan = resolve(name, "cuda")
        assert Work.of(plan).plan() == plan
    with pytest.raises(LenetError, match="expected a variant of cuda, found 'none.such'"):
        StageSpec("conv1", "none.such", "NHWC", "NHWC").bound()


@pytest.fixture
def marks(monkeypatch):
    """Section numbers, "start" and "stop" in call order; CuPy is replaced by NumPy."""
    cupy = ModuleType("cupy")
    cupy.asarray, cupy.concatenate = np.asarray, np.concatenate
    cupy.cuda = SimpleNamespace(runtime=SimpleNamespace(deviceSynchronize=lambda: 0))
    found = []
    profiler = SimpleNamespace(
        cuProfilerStart=lambda: found.append("start") or 0,
        cuProfilerStop=lambda: found.append("stop") or 0,
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(child, "driver", lambda: profiler)
    monkeypatch.setattr(child, "mark", found.append)
    return found


def test_child_counts_one_pass_and_continues_after_failures(marks):
    process = child._Child(Images(IMAGES.data, IMAGES.weights, 130))
    alone = (
        StageSpec("conv1", "tiled.blocked", "NHWC", "NHWC", "cpu"),
        StageSpec("pool1", "none.such", "NHWC", "NHWC", "cpu"),
        StageSpec("fc1", "tiled.blocked", "NC", "NC", "cpu"),
    )
    for index, work in enumerate((Work("alone", alone), Work.of(resolve("tiled", "cpu")))):
        process.run(index, work)
    names = [(one["work"], one["name"]) for one in process.sections]
    assert names[:3] == [(0, "conv1"), (0, "pool1"), (0, "fc1")]
    assert [name for work, name in names if work == 1][1:3] == ["conv1", "pool1"]
    assert "none.such" in process.sections[1]["error"]
    steps = len(process.sections) - 3
    a_pass = [*range(3, 3 + steps), 3]
    again = [*range(4, 3 + steps), 3] * 2  # 130 images are three chunks of 64 at most
    assert marks == ["start", 0, "stop", "start", 2, "stop", "start", *a_pass, *again, "stop"]
    few = process._images[:100]
    expected = reference_stages(few, process._weights)["pool1"].astype(np.float32)
    x = process._activations("conv2", stage_of("conv2").problem)
    np.testing.assert_array_equal(x, expected)
    first = process._activations("conv1", None)
    assert first.dtype == np.float32 and first.max() <= 1 and len(first) == 100


def test_each_pass_has_counters_of_its_kernel(pretended):
    pretended()
    own = specs(KEYS)
    _, (rows,) = document.find([Work("suite", tuple(own.values()))], IMAGES, GPU)
    by_key = dict(zip(own, rows, strict=True))
    relu = kernels_of_rows("pool1", RELU, by_key)
    mean = kernels_of_rows("pool1", MEAN, by_key)
    assert [row["kernels"][0]["kernel"] for row in (relu, mean)] == ["relu_in_place", "looped_mean"]
    assert (mean["stage"], mean["variant"], mean["launches"]) == ("pool1", "mean", 1)
    assert kernels_of_rows("pool2", MEAN, by_key) is None
    assert described(mean) == (
        "measured loads 12%, stores 100%, shared 50%, active warps 31%, DRAM 1,501 GB/s, "
        "75% wait for long_scoreboard"
    )


def profiled(monkeypatch, find_counters):
    """Return `profile --counters` of a CPU run that poses as a GPU's, and its steps in order."""
    order = []
    outcome = profiling.infer(Request(limit=70, device="cpu", plan="tiled", timing=True))

    def infer(request, progress):
        order.append("timed")
        outcome.gpu = GPU
        return outcome

    def count(works, images, gpu):
        order.append((works, images))
        return find_counters(works, images, gpu)

    monkeypatch.setattr(profiling, "choose_device", lambda *_: (GPU, "found"))
    monkeypatch.setattr(profiling, "infer", infer)
    monkeypatch.setattr(profiling.counters_of, "find", count)
    return profiling.profile(Request(skip=3, chunk=7), counters=True), order


def test_profile_counts_after_timing(pretended, monkeypatch):
    pretended()
    found, order = profiled(monkeypatch, document.find)
    (works, images) = order[1]
    assert order[0] == "timed" and works == [Work.of(resolve("tiled", "cpu"))]
    assert (images.count, images.data) == (70, assets.default_digits())
    assert found.counters["source"] == "ncu" and found.counters["rows"][0]["stage"] == "conv1"
    assert found.document()["counters"] == found.counters
    rows = {row["name"]: row for row in csv.DictReader(found.table().csv().splitlines())}
    assert float(rows["conv1"]["counters.global_load_efficiency"]) == 0.125
    assert rows["input"]["counters.global_load_efficiency"] == ""


def test_ctrl_c_under_ncu_keeps_times(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    found, _ = profiled(monkeypatch, interrupt)
    assert found.outcome.interrupted and found.rows and found.counters is None


def pools(*names):
    """Return a comparison of correct variants of pool1, and its document."""
    candidates = []
    for name in names:
        variant = find("pool", name, "cuda")
        bench = object.__new__(StageBench)
        bench.variant, bench.problem = variant, variant.laid_out(stage_of("pool1").problem)
        candidates.append(Candidate(name, lambda: None, status="right", bench=bench))
    comparison = Comparison("pool1", names[0], candidates)
    entries = [{"name": name, "status": "right", "note": "", "median_ms": 1.0} for name in names]
    held = {"what": "pool1", "interrupted": False, "candidates": entries, "command": "compare"}
    return comparison, held | {"baseline_again": None}


def test_candidates_have_counters_and_plugins_none(pretended):
    pretended(errors={"layout.quad_looped": "requires more memory"})
    comparison, held = pools(
        "fused.maps_looped", "layout.quad_looped", PASSES_OF, "fused.relu_in_mean"
    )
    comparison.candidates[0].status = "wrong"
    comparison.candidates[2].bench = SimpleNamespace(problem=None)  # a plugin's bench
    shown.count_candidates(comparison, held, IMAGES, GPU, lambda line: None)
    wrong, failed, plugin, _ = (entry["counters"] for entry in held["candidates"])
    assert wrong is plugin is None and failed["error"] == "requires more memory"
    assert held["counters"]["source"] == "ncu"
    assert all(candidate.bench is None for candidate in comparison.candidates)
    rows = list(csv.DictReader(compared.table(held).csv().splitlines()))
    assert rows[-1]["counters.occupancy"] == "0.3114"


def suite():
    """Return suite rows, correct with times except for a wrong one."""
    rows = [
        {"stage": stage, "variant": name, "status": "right", "median_ms": 1.0, "explanation": "e"}
        for stage, ladder in LADDERS
        for name, _ in ladder
    ]
    rows.append({"stage": "pool1", "variant": "fused.relu_in_mean", "status": "wrong"})
    held = {"what": "suite course", "interrupted": False, "rows": rows}
    shown.count_suite(held, IMAGES, GPU, lambda line: None)
    return held, {(row["stage"], row["variant"]): row for row in rows}


def test_ladder_explanations_use_counters(pretended):
    pretended()
    held, by_key = suite()
    assert by_key["pool1", MEAN]["explanation"].startswith("e, measured loads 12%")
    assert by_key["pool1", "fused.relu_in_mean"]["counters"] is None
    steps = {step["step"]: step["why"] for step in step_rows(held["rows"])}
    why = steps["direct.basic to direct.tight"]
    assert why.count("wait for long_scoreboard") == 2 and " -> e, measured" in why
    assert "measured" not in by_key["all", LADDERS[-1][1][0][0]]["explanation"]


def test_counted_values_are_not_reported_as_measured(no_ncu):
    held, by_key = suite()
    assert held["counters"]["source"] == "counted"
    assert {row.get("explanation") for row in held["rows"]} == {"e", None}
    assert by_key["conv2", "direct.two_maps"]["counters"]["global_store_efficiency"] == 0.25


def test_kernels_of_a_counter_file_are_hashed(pretended, script):
    pretended()
    plans = {name: resolve(name, "cuda") for name in ("course", "fp16x3")}
    made = json.loads(json.dumps(script("counters").measured(GPU, plans, 10_000)))
    found = script("measured").kernels_of(made | {"commit": "0123456789abcdef"})
    for name in ("pool/looped.cu", "conv/course/maps.cu", "fused/wgmma/fp16x3_features.cu"):
        assert f"lenetgpu/stages/{name}" in found
