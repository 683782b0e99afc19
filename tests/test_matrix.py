"""Seven stages by five families on two devices: every cell runs and is right, or says why not."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from limits import LIMITS

from lenetgpu.check.judge import check_variant
from lenetgpu.check.truth import random_input, reference, reference_scores
from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.gpu import blas
from lenetgpu.lab.listing import GREEN, RED, matrix_lines
from lenetgpu.network import STAGE_NAMES, stage
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import NAMED, resolve
from lenetgpu.problems import Conv, Fc
from lenetgpu.stages import find
from lenetgpu.stages.fc.valid_conv import as_conv
from lenetgpu.stages.matrix import DEVICES, FAMILIES, cells

CELLS = cells()
REASON = "an FFT is for sums of products, and the largest of K scores is no sum"
"""The one cell that means nothing, on both devices."""


def called(cell):
    return f"{cell.device}-{cell.stage}-{cell.family}"


def plain(lines):
    return ["".join(text for text, _ in line) for line in lines]


def test_there_are_35_cells_on_each_device_and_one_is_refused():
    assert len(FAMILIES) == 5 and len(STAGE_NAMES) == 7
    assert [(c.device, c.stage, c.family) for c in CELLS] == [
        (device, name, family) for device in DEVICES for name in STAGE_NAMES for family in FAMILIES
    ]
    refused = {(c.device, c.stage, c.family): c.refused for c in CELLS if c.variant is None}
    assert refused == {(device, "argmax", "fft"): REASON for device in DEVICES}
    assert all((c.variant is None) == (c.name is None) == (c.refused is not None) for c in CELLS)


@pytest.mark.parametrize("cell", CELLS, ids=called)
def test_a_cell_is_what_its_family_means_for_the_stage(cell):
    kind = stage(cell.stage).kind
    if cell.variant is None:
        with pytest.raises(LenetError, match=f"^stage {cell.stage} has no .*'fft'.*: {REASON}; "):
            find(kind, cell.family, cell.device, cell.stage)
        return
    assert cell.variant is find(kind, cell.family, cell.device)
    assert cell.name in cell.variant.names and cell.name.startswith(f"{cell.family}.")
    assert cell.copies == (cell.device == "cuda" and cell.family == "serial")
    assert cell.variant.precision == "fp32"
    if cell.device == "cuda" and not cell.copies:
        problem = cell.variant.laid_out(stage(cell.stage).problem)
        own = cell.variant.kernels(problem, 10_000)
        library_alone = (cell.stage, cell.family) == ("fc2", "cublas")  # no ReLU behind it
        assert bool(own) != library_alone


def assert_runs(cell, n, rng):
    kind = stage(cell.stage).kind
    problem = cell.variant.laid_out(stage(cell.stage).problem)
    x, w = random_input(kind, problem, n, rng)
    verdict = check_variant(cell.variant, problem, x, w, reference(kind, x, w, problem))
    assert verdict.passed, f"{verdict} for {problem}"


@pytest.mark.parametrize("cell", [c for c in CELLS if c.variant and c.device == "cpu"], ids=called)
def test_a_cell_runs_on_a_cpu(cell, rng):
    for n in (1, 6):
        assert_runs(cell, n, rng)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", [c for c in CELLS if c.variant and c.device == "cuda"], ids=called)
def test_a_cell_runs_on_a_gpu(cell, rng):
    for n in (1, 77):
        assert_runs(cell, n, rng)


@pytest.mark.parametrize(
    ("family", "device"),
    [(family, device) for family in FAMILIES for device in DEVICES
     if (family, device) != ("serial", "cuda")],
)  # fmt: skip
def test_a_plan_named_like_a_family_means_every_stage(family, device):
    plan = resolve(family, device)
    assert [slot.name for slot in plan.slots] == list(STAGE_NAMES)
    by = {c.stage: c for c in CELLS if (c.family, c.device) == (family, device)}
    in_place = {c.stage: c for c in CELLS if (c.family, c.device) == ("tiled", device)}
    for slot in plan.slots:
        cell = by[slot.name] if by[slot.name].variant else in_place[slot.name]
        assert slot.variant is cell.variant
        assert slot.variant.needs.device == device


def test_what_those_plans_ran_beside_their_family_is_still_there():
    before = {"cpu": {"pool": "fused.rows", "fc": "tiled.blocked", "argmax": "serial.loops"},
              "cuda": {"pool": "fused.relu_in_mean", "fc": "tiled.shared",
                       "argmax": "thread.per_image"}}  # fmt: skip
    for device, names in before.items():
        overrides = {s: names[stage(s).kind] for s in STAGE_NAMES if stage(s).kind in names}
        for family in FAMILIES[1:]:
            found = [s.variant.full_name for s in resolve(family, device, overrides).slots]
            assert found[1::2][:2] == [names["pool"]] * 2 and found[6] == names["argmax"]
    assert NAMED["sgemm"]["cuda"]["conv"] == "cublas"
    sgemm = [slot.variant.full_name for slot in resolve("sgemm", "cuda").slots]
    assert sgemm == ["cublas.im2col", "fused.relu_in_mean"] * 2 + ["cublas.sgemm"] * 2 + [
        "thread.per_image"
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_those_plans_are_right(family, shipped_weights, rng):
    images = rng.integers(0, 256, (23, 28, 28, 1), dtype=np.uint8)
    scores, labels = reference_scores(images, shipped_weights)
    pipeline = Pipeline(resolve(family, "cpu"), shipped_weights, 23, chunk=10)
    pipeline.poison()
    np.testing.assert_array_equal(pipeline.run(images), labels)
    assert np.abs(pipeline.scores(23) - scores).max() <= LIMITS["fp32"] * np.abs(scores).max()


def test_fc1_is_a_convolution_of_pool2s_map_and_fc2_a_1x1():
    assert as_conv(stage("fc1").problem) == Conv(4, 4, 64, 128, 4, 4)
    assert as_conv(stage("fc2").problem) == Conv(1, 1, 128, 10, 1, 1)
    assert as_conv(Fc(33, 31, relu=True)) == Conv(1, 1, 33, 31, 1, 1)
    for problem in (stage("fc1").problem, Fc(33, 31, relu=True)):
        assert as_conv(problem).out_shape == (1, 1, problem.M)


class OnDevice:
    """A NumPy array with an address where CuPy's have it."""

    def __init__(self, array):
        self.shape, self.itemsize = array.shape, array.itemsize
        self.data = SimpleNamespace(ptr=array.ctypes.data)


SHARED, OWN = 7, 8


class Library:
    """A stand-in for cuBLAS: two handles, their pointer modes, streams and what they are asked."""

    CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE = 0, 1
    CUBLAS_OP_N = CUBLAS_DEFAULT_MATH = 0

    def __init__(self, width):
        self.width, self.mode, self.stream, self.math = width, {SHARED: 0, OWN: 0}, {}, {SHARED: 3}

    def create(self):
        return OWN

    def getPointerMode(self, handle):
        return self.mode[handle]

    def setPointerMode(self, handle, mode):
        self.mode[handle] = mode

    def setStream(self, handle, stream):
        self.stream[handle] = stream

    def getMathMode(self, handle):
        return self.math[handle]

    def setMathMode(self, handle, mode):
        self.math[handle] = mode

    def idamax(self, handle, n, x, incx, result):
        assert (handle, incx, self.stream[handle]) == (OWN, 1, 99)
        assert self.mode == {SHARED: 0, OWN: 1}
        row = np.array((ctypes.c_double * n).from_address(x))
        self.width.from_address(result).value = int(np.abs(row).argmax()) + 1

    def sgemm(self, handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        assert (handle, self.stream[handle], self.math[handle]) == (SHARED, 99, 0)
        assert self.mode[handle] == 0, "alpha and beta are the host's"
        scale, keep = (ctypes.c_float.from_address(at).value for at in (alpha, beta))
        left, right, out = (
            np.ctypeslib.as_array((ctypes.c_float * (rows * columns)).from_address(at)).reshape(
                columns, rows
            )
            for at, rows, columns in ((a, m, k), (b, k, n), (c, m, n))
        )
        assert (lda, ldb, ldc, keep) == (m, k, m, 0)
        out[...] = scale * (right @ left)


@pytest.fixture
def library(request, monkeypatch):
    cublas = Library(getattr(request, "param", ctypes.c_int32))
    cuda = ModuleType("cupy.cuda")
    cuda.cublas, cuda.device = cublas, SimpleNamespace(get_cublas_handle=lambda: SHARED)
    cuda.get_current_stream = lambda: SimpleNamespace(ptr=99)
    cuda.runtime = SimpleNamespace(getDevice=lambda: 0)
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    blas._search_handle.cache_clear()
    yield cublas
    blas._search_handle.cache_clear()


@pytest.mark.parametrize("library", [ctypes.c_int32, ctypes.c_int64], indirect=True)
def test_the_search_goes_row_by_row_on_a_handle_of_its_own(library, rng):
    """What cuBLAS is told, and both widths of what it writes."""
    rows, found = rng.random((5, 11)), np.zeros(6, np.int64)
    blas.largest_of_rows(OnDevice(rows), OnDevice(found[:5]))
    np.testing.assert_array_equal(found, [*rows.argmax(axis=1) + 1, 0])
    assert library.mode == {SHARED: 0, OWN: 1}


@pytest.mark.parametrize("left", [0, 1])
def test_a_products_scalars_are_the_hosts_however_the_handle_was_left(left, library, rng):
    library.mode[SHARED] = left
    a, b = rng.random((1, 4), np.float32), rng.random((4, 9), np.float32)
    out = np.zeros((1, 9), np.float32)
    blas.exact_sgemm(OnDevice(a), OnDevice(b), OnDevice(out))
    np.testing.assert_allclose(out, a @ b, rtol=1e-6)
    assert library.mode[SHARED] == left and library.math[SHARED] == 3


@pytest.mark.gpu
@pytest.mark.parametrize("n", [64, 133])
def test_products_after_a_search_on_a_gpu(n, rng):
    """Searches, a product of CuPy's in float64 and pools as products, in one process."""
    import cupy

    cublas = {c.stage: c for c in CELLS if (c.family, c.device) == ("cublas", "cuda")}
    for _ in range(2):
        assert_runs(cublas["argmax"], 3, rng)
        left = cupy.asarray(rng.random((n * 64, 32)))
        right = cupy.asarray(rng.random((32, 64)))
        np.testing.assert_allclose((left @ right).get(), left.get() @ right.get(), rtol=1e-12)
        for name in ("pool1", "pool2", "fc2"):
            assert_runs(cublas[name], n, rng)


def run(*words):
    return CliRunner().invoke(main, ["variants", "--matrix", *words])


def test_the_matrix_is_printed_with_a_row_a_stage_and_its_reason():
    result = run()
    assert result.exit_code == 0 and "\x1b" not in result.output
    *lines, machine = result.output.splitlines()
    assert machine.startswith("on this machine: cpu")
    assert lines == plain(matrix_lines(CELLS, 10_000))
    heads = [line.split() for line in lines if line.split()[:1] in (["cpu"], ["cuda"])]
    assert heads == [[device, *FAMILIES] for device in DEVICES]
    for device, at in (("cpu", 1), ("cuda", 10)):
        rows = [line.split() for line in lines[at : at + 7]]
        assert [row[0] for row in rows] == list(STAGE_NAMES)
        for row in rows:
            for found, family in zip(row[1:], FAMILIES, strict=True):
                (cell,) = [c for c in CELLS if called(c) == f"{device}-{row[0]}-{family}"]
                name = cell.name and cell.name.partition(".")[2] + "*" * cell.copies
                assert found == (name or "refused")
    assert lines[-2:] == ["* the CPU's, with copies", f"argmax by fft on cpu and cuda: {REASON}"]


def test_a_cell_is_green_or_red():
    styles = {text.strip(): style for line in matrix_lines(CELLS, 80) for text, style in line}
    assert styles["refused"] == RED
    names = {c.name.partition(".")[2] + "*" * c.copies for c in CELLS if c.name}
    assert {styles[name] for name in names} == {GREEN}


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_matrix_fits_a_terminal_of_eighty(width):
    lines = plain(matrix_lines(CELLS, width))
    assert max(map(len, lines)) <= max(width, 80)
    assert not any(line != line.rstrip() for line in lines)
    assert REASON in " ".join(" ".join(lines).split())


def test_rows_of_a_stage_or_kind_alone():
    rows = re.findall(r"^(\w+) ", run("pool").output.partition("on this")[0], flags=re.M)
    assert rows == ["cpu", "pool1", "pool2", "cuda", "pool1", "pool2"]
    assert "argmax" not in run("fc2").output
    refused = run("features")
    assert refused.exit_code == 2
    assert "expected one of conv1, pool1" in refused.output and "'features'" in refused.output


def test_the_matrix_as_json():
    document = json.loads(run("--json").output)
    assert (document["schema"], document["command"]) == (1, "variants")
    assert document["matrix"] == [cell.as_json() for cell in CELLS]
    (last, first) = document["matrix"][-1], document["matrix"][35]
    assert last == {"stage": "argmax", "family": "fft", "device": "cuda", "variant": None,
                    "copies": False, "refused": REASON}  # fmt: skip
    assert first["copies"] and first["variant"] == "serial.loops"
