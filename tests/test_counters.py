"""Hardware counters without a GPU: what ncu prints, whose launches they are, what there is without.

An `ncu` that runs nothing (pretended_ncu.py) says what its test wants.
"""

from __future__ import annotations

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

from lenetgpu.check.truth import reference_stages
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.gpu.device import Gpu
from lenetgpu.lab import counters as shown
from lenetgpu.lab.render import show
from lenetgpu.measure.counters import child, counted, document, metrics, ncu, read
from lenetgpu.measure.counters.metrics import (
    CAUSES,
    NVVP_CAUSES,
    TIME,
    UNITS,
    asked,
    of_values,
    stall,
)
from lenetgpu.measure.counters.ncu import NoCounters
from lenetgpu.measure.counters.work import Images, Place, Work, as_json, from_json
from lenetgpu.network import stage
from lenetgpu.papers.course_counters import (
    NVVP,
    PASSES_OF,
    places,
)
from lenetgpu.plan import resolve

H200 = (ROOT / "tests" / "ncu-h200.csv").read_text()
OF_SAMPLE = {
    TIME: "ns",
    metrics.READ: "byte/s",
    metrics.OCCUPANCY: "%",
    metrics.LOADS: "%",
}
GPU = Gpu(0, "Card", 90)
IMAGES = Images(assets.default_digits(), assets.default_weights(), 10_000)
KEYS = [("pool1", PASSES_OF), ("conv2", "direct.two_maps")]


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """Install an `ncu` that is told so."""

    def install(**told):
        told = {"kernels": {PASSES_OF: ["relu_in_place", "looped_mean"]}} | told
        pretended_ncu.install(tmp_path / "bin", monkeypatch, **told)

    return install


def few():
    return [Work("few", tuple(places(KEYS).values())), Work.of(resolve("course", "cuda"))]


def test_what_an_h200_printed_is_read_with_its_commas():
    first, second = ncu.parsed(H200, OF_SAMPLE)
    assert first.kernel == second.kernel == "k" and first.blocks == 512
    assert first.values == {
        TIME: 3936, metrics.READ: 1_066_341_463_414.63, metrics.OCCUPANCY: 31.14,
        metrics.LOADS: 12.5,
    }  # fmt: skip
    assert second.values[TIME] == 3872


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ("", "expected CSV, found 'nothing'"),
        ("==PROF== Connected\nNo kernels were profiled.\n", "No kernels were profiled."),
        (H200[:-40], "row 3: expected it whole"),
        (H200[: H200.index('"0","502"')] + '"0","502","python3"\n', "columns, found 3"),
        (H200.replace(TIME, "gpu__time.sum"), f"a column {TIME}, found none"),
        (H200.replace('"ns"', '"us"'), f"{TIME}: expected ns, found us"),
        (H200[: H200.index('"","",')], "a row of units"),
        (H200.replace('"3,936"', '"fast"'), "a number, found 'fast'"),
        (H200.replace('"(512, 1, 1)"', '"many"'), "a grid, found 'many'"),
    ],
)
def test_what_is_not_whole_is_a_sentence(said, part):
    with pytest.raises(NoCounters) as error:
        ncu.parsed(said, OF_SAMPLE)
    assert part in str(error.value) and "\n" not in str(error.value)


def values(**some):
    """A launch's metrics by hand; none stalls but as told, by cause."""
    found = dict.fromkeys(UNITS, 0.0) | {TIME: 2e6, metrics.LOADED: 10.0, metrics.LOADS: 50.0}
    return found | {stall(cause): share for cause, share in some.items()}


def test_shares_of_stalls_leave_out_the_warp_that_is_chosen_and_add_up():
    found = of_values("k", values(wait=1.0, long_scoreboard=3.0))
    assert found.stalls == {"long_scoreboard": 0.75, "wait": 0.25}
    assert found.top_stall == "long_scoreboard" and found.as_json()["top_stall_share"] == 0.75
    assert list(found.stalls) == ["long_scoreboard", "wait"]
    assert "selected" not in CAUSES and len(set(CAUSES)) == len(CAUSES) == 18
    assert set(NVVP_CAUSES) < set(CAUSES)


def test_units_and_what_there_is_nothing_of():
    found = of_values("k", values() | {metrics.READ: 2e12, metrics.OCCUPANCY: 31.0})
    assert (found.ms, found.dram_read_gbs, found.occupancy) == (2.0, 2000.0, 0.31)
    assert found.global_load_efficiency == 0.5
    assert found.global_store_efficiency is found.shared_efficiency is found.top_stall is None


def test_kernels_of_a_stage_are_one_by_time_by_sectors_and_by_wavefronts():
    """By hand: 1 ms and 3 ms; 100 sectors half used and 300 whole; 128 B a wave and 32 B."""
    one = of_values("a", values(wait=1.0) | {
        TIME: 1e6, metrics.READ: 4e9, metrics.LOADED: 100.0, metrics.LOADS: 50.0,
        metrics.SHARED: 100.0, metrics.SHARED_BYTES: 1280.0, metrics.OCCUPANCY: 80.0,
    })  # fmt: skip
    two = of_values("b", values(drain=1.0) | {
        TIME: 3e6, metrics.READ: 8e9, metrics.LOADED: 300.0, metrics.LOADS: 100.0,
        metrics.SHARED: 25.0, metrics.SHARED_BYTES: 1280.0, metrics.OCCUPANCY: 40.0,
    })  # fmt: skip
    both = metrics.merged("both", [one, two])
    assert (both.launches, both.ms, both.dram_read_gbs) == (2, 4.0, 7.0)
    assert both.global_load_efficiency == pytest.approx(0.875)
    assert both.shared_efficiency == pytest.approx(2560 / (1280 + 5120))
    assert both.occupancy == pytest.approx(0.5)
    assert both.stalls == {"drain": 0.75, "wait": 0.25}
    assert metrics.merged("one", [one]).as_json() == one.as_json() | {"kernel": "one"}


def test_launches_go_to_their_sections(pretended):
    pretended(extra=["void cupy_copy<float, 4>(float*)"])
    found = read.read(few(), IMAGES, GPU)
    assert found.version == "2025.3.1.0"
    pool, conv = found.of(0)
    assert [kernel.kernel for kernel in pool.kernels] == [
        "void cupy_copy<float, 4>(float*)", "relu_in_place", "looped_mean",
    ]  # fmt: skip
    assert [kernel.kernel for kernel in conv.kernels][1:] == ["k_conv2"]
    assert [section.name for section in found.of(1)] == [
        "conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "argmax",
    ]  # fmt: skip
    whole = conv.whole
    assert (whole.launches, whole.ms, whole.l2_gbs) == (2, 4.0, None)
    assert (whole.dram_read_gbs, whole.dram_write_gbs) == (pytest.approx(1500), 0.75)
    assert (whole.global_load_efficiency, whole.shared_efficiency) == (0.125, 0.5)


@pytest.mark.parametrize(
    ("told", "part"),
    [
        ({"lost": ["looped_mean"]}, "pool1 basic.in_place: expected kernel looped_mean"),
        ({"lost": ["k_conv1"]}, "conv1 unrolled.constant_layout: expected kernel k_conv1"),
        ({"lost": [pretended_ncu.MARK]}, "expected a mark first, found kernel relu_in_place"),
        ({"cut": 5000}, "expected"),
        ({"cut": 2}, "expected it whole"),
        ({"fail": "ERR_NVGPUCTRPERM - The user does not have permission"}, "ERR_NVGPUCTRPERM"),
        ({"fail": "ERR_NVGPUCTRPERM - The user", "code": 0}, "ERR_NVGPUCTRPERM"),
        ({"fail": "LibraryNotLoaded", "code": 9}, "code 9: LibraryNotLoaded"),
        ({"end": 3}, "code 3: ==PROF== Disconnected"),
    ],
)
def test_what_does_not_fit_is_no_counter(pretended, told, part):
    pretended(**told)
    with pytest.raises(NoCounters, match=r"^ncu") as error:
        read.read(few(), IMAGES, GPU)
    assert part in str(error.value)


def test_sections_know_their_marks_only():
    told = [{"work": 0, "name": "conv1", "variant": "v", "launched": [], "error": None}]
    marks = [ncu.Profiled(child.MARK.entry, number, {}) for number in (1, 2)]
    assert read.sections(told, marks[:1])[0].whole is None
    with pytest.raises(NoCounters, match="expected 1 sections, found number 2"):
        read.sections(told, marks)


def test_a_work_that_fails_leaves_the_others(pretended):
    pretended(errors={"direct.two_maps": "needs more memory"})
    pool, conv = read.read(few(), IMAGES, GPU).of(0)
    assert conv.error == "needs more memory" and conv.kernels == [] and pool.whole is not None


def alive(pid):
    """Whether a process runs; one that ended and that nobody waited for does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_a_process_that_does_not_end_is_ended_with_those_it_started(tmp_path):
    pid = tmp_path / "pid"
    code = f"echo $$ >{pid}; sleep 60 >/dev/null 2>&1 & echo $! >>{pid}; wait"
    with pytest.raises(NoCounters, match="expected an end in 1 s"):
        ncu.run(["sh", "-c", code], 1, "")
    own, its = map(int, pid.read_text().split())
    for _ in range(50):
        if not alive(its):
            break
        time.sleep(0.02)
    assert not alive(own) and not alive(its)


def test_without_ncu_efficiencies_are_counted_and_never_called_measured(monkeypatch):
    monkeypatch.setattr(ncu.shutil, "which", lambda *_, **__: None)
    found = document.find(few(), IMAGES, GPU)
    assert found.head == {
        "source": "counted", "version": None, "images": 10_000,
        "note": "Nsight Compute: expected ncu on PATH or in CUDA's folder, found none",
    }  # fmt: skip
    conv = found.rows[0][1]
    (figure,) = [line for line in NVVP if line.variant == "direct.two_maps"]
    loads, _ = figure.counted()
    assert conv["global_load_efficiency"] == pytest.approx(loads.efficiency, abs=5e-4)
    assert conv["global_store_efficiency"] == 0.25
    assert "occupancy" not in conv
    text = printed(found.as_json(), True)
    assert "counted from addresses, not measured: Nsight Compute: expected ncu" in text
    assert "measured by" not in text and "DRAM" not in text


def test_a_variant_that_counts_nothing_has_a_dash(monkeypatch):
    monkeypatch.setattr(ncu.shutil, "which", lambda *_, **__: None)
    found = document.find([Work("w", (Place("fc1", "cublas.sgemm", "NC", "NC"),))], IMAGES, GPU)
    assert counted.efficiencies(Work.of(resolve("sgemm", "cuda")).plan().slots[0], 1, None) is None
    row = next(line for line in printed(found.as_json(), True).splitlines() if "sgemm" in line)
    assert row.split() == ["fc1", "cublas.sgemm", "-", "-"]


def printed(counters, kernels):
    console = Console(width=250, file=StringIO())
    show(console, shown.parts(counters, counters["rows"], kernels))
    return console.file.getvalue()


def test_a_row_a_kernel_and_where_it_is_from(pretended):
    pretended()
    counters = document.find(few()[:1], IMAGES, GPU).as_json()
    assert set(counters) == {"source", "version", "note", "images", "rows"}
    text = printed(counters, True)
    assert [text.count(name) for name in ("relu_in_place", "looped_mean", "k_conv2")] == [1, 1, 1]
    assert "long_scoreboard 75%, wait 25%" in text and "12.5%" in text
    assert "measured by Nsight Compute 2025.3.1.0" in text
    assert "looped_mean" not in printed(counters, False)


def test_only_hopper_is_asked_for_its_own_stall():
    gmma = stall("gmma")
    assert asked(90) == UNITS and asked(89) == asked(120) == asked(75)
    assert UNITS.keys() - asked(89).keys() == {gmma}
    without = values(wait=1.0)
    del without[gmma]
    assert of_values("k", without).stalls == {"wait": 1.0}


def test_an_older_gpus_columns_are_enough(pretended):
    pretended()
    assert read.read(few(), IMAGES, Gpu(0, "Card", 86)).of(0)[0].whole is not None


def test_works_come_through_json_as_they_were():
    works, images, device = from_json(json.loads(json.dumps(as_json(few(), IMAGES, 3))))
    assert (works, images, device) == (few(), IMAGES, 3)
    for name in ("course", "fp32", "int8", "block"):
        plan = resolve(name, "cuda")
        assert Work.of(plan).plan() == plan
    with pytest.raises(LenetError, match="expected a variant of cuda, found 'none.such'"):
        Place("conv1", "none.such", "NHWC", "NHWC").slot()


class _Gpu(ModuleType):
    """CuPy as far as the process needs it, on NumPy."""

    def __init__(self):
        super().__init__("cupy")
        self.asarray, self.concatenate = np.asarray, np.concatenate
        self.cuda = SimpleNamespace(runtime=SimpleNamespace(deviceSynchronize=lambda: 0))


@pytest.fixture
def marks(monkeypatch):
    """What the process marks and starts, with no GPU: numbers, "start" and "stop"."""
    found = []
    profiler = SimpleNamespace(
        cuProfilerStart=lambda: found.append("start") or 0,
        cuProfilerStop=lambda: found.append("stop") or 0,
    )
    monkeypatch.setitem(sys.modules, "cupy", _Gpu())
    monkeypatch.setattr(child, "driver", lambda: profiler)
    monkeypatch.setattr(child, "mark", found.append)
    return found


def test_the_process_counts_one_pass_of_each_and_keeps_numbers_of_what_fails(marks):
    asked = Images(IMAGES.data, IMAGES.weights, 130)
    process = child._Child(asked)
    plan = resolve("tiled", "cpu")
    alone = (
        Place("conv1", "tiled.blocked", "NHWC", "NHWC", "cpu"),
        Place("pool1", "none.such", "NHWC", "NHWC", "cpu"),
        Place("fc1", "tiled.blocked", "NC", "NC", "cpu"),
    )
    for index, work in enumerate((Work("alone", alone), Work.of(plan))):
        process.run(index, work)
    names = [(one["work"], one["name"]) for one in process.sections]
    assert names[:3] == [(0, "conv1"), (0, "pool1"), (0, "fc1")]
    assert [name for work, name in names if work == 1][1:3] == ["conv1", "pool1"]
    assert "none.such" in process.sections[1]["error"]
    steps = len(process.sections) - 3
    a_pass = [*range(3, 3 + steps), 3]
    again = [*range(4, 3 + steps), 3] * 2  # 130 images are three chunks of 64 at most
    assert marks == ["start", 0, "stop", "start", 2, "stop", "start", *a_pass, *again, "stop"]


def test_the_process_feeds_a_stage_what_it_would_read(marks):
    process = child._Child(Images(IMAGES.data, IMAGES.weights, 50))
    x = process._activations("conv2", stage("conv2").problem)
    expected = reference_stages(process._images[:50], process._weights)["pool1"]
    np.testing.assert_array_equal(x, expected.astype(np.float32))
    first = process._activations("conv1", None)
    assert first.dtype == np.float32 and first.max() <= 1 and len(first) == 50
