"""Seven stages by five families on two devices: every cell is correct or gives a reason."""

import json
import re
from functools import partial

import numpy as np
import pytest
import terminal

from lenetgpu.check.judge import check_variant
from lenetgpu.check.reference import random_input, reference
from lenetgpu.errors import LenetError
from lenetgpu.lab.listing import matrix_lines
from lenetgpu.network import STAGE_NAMES, stage
from lenetgpu.plan import resolve
from lenetgpu.stages import find
from lenetgpu.stages.matrix import DEVICES, FAMILIES, cells

CELLS = cells()
# the one meaningless combination, on both devices
REASON = "an FFT is for sums of products, and the largest of K scores is no sum"


def called(cell):
    return f"{cell.device}-{cell.stage}-{cell.family}"


def plain(lines):
    return ["".join(text for text, _ in line) for line in lines]


def test_matrix_has_35_cells_per_device_and_one_is_refused():
    assert len(FAMILIES) == 5 and len(STAGE_NAMES) == 7
    assert [(c.device, c.stage, c.family) for c in CELLS] == [
        (device, name, family) for device in DEVICES for name in STAGE_NAMES for family in FAMILIES
    ]
    refused = {(c.device, c.stage, c.family): c.refused for c in CELLS if c.variant is None}
    assert refused == {(device, "argmax", "fft"): REASON for device in DEVICES}
    assert all((c.variant is None) == (c.name is None) == (c.refused is not None) for c in CELLS)


@pytest.mark.parametrize("cell", CELLS, ids=called)
def test_cell_resolves_to_the_variant_of_its_family(cell):
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
        library_alone = (cell.stage, cell.family) == ("fc2", "cublas")  # without the ReLU
        assert bool(own) != library_alone


def assert_runs(cell, n, rng):
    kind = stage(cell.stage).kind
    problem = cell.variant.laid_out(stage(cell.stage).problem)
    x, w = random_input(kind, problem, n, rng)
    verdict = check_variant(cell.variant, problem, x, w, reference(kind, x, w, problem))
    assert verdict.passed, f"{verdict} for {problem}"


@pytest.mark.parametrize("cell", [c for c in CELLS if c.variant and c.device == "cpu"], ids=called)
def test_cell_runs_on_cpu(cell, rng):
    for n in (1, 6):
        assert_runs(cell, n, rng)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", [c for c in CELLS if c.variant and c.device == "cuda"], ids=called)
def test_cell_runs_on_gpu(cell, rng):
    for n in (1, 77):
        assert_runs(cell, n, rng)


@pytest.mark.parametrize(
    ("family", "device"),
    [(family, device) for family in FAMILIES for device in DEVICES
     if (family, device) != ("serial", "cuda")],
)  # fmt: skip
def test_family_plan_uses_the_family_in_every_stage(family, device):
    plan = resolve(family, device)
    assert [bound.name for bound in plan.stages] == list(STAGE_NAMES)
    by = {c.stage: c for c in CELLS if (c.family, c.device) == (family, device)}
    in_place = {c.stage: c for c in CELLS if (c.family, c.device) == ("tiled", device)}
    for bound in plan.stages:
        cell = by[bound.name] if by[bound.name].variant else in_place[bound.name]
        assert bound.variant is cell.variant
        assert bound.variant.needs.device == device


@pytest.mark.gpu
@pytest.mark.parametrize("n", [64, 133])
def test_cublas_products_are_correct_after_argmax_on_gpu(n, rng, cupy):
    """Searches, a float64 product by CuPy and pools as products, in one process."""
    cublas = {c.stage: c for c in CELLS if (c.family, c.device) == ("cublas", "cuda")}
    for _ in range(2):
        assert_runs(cublas["argmax"], 3, rng)
        left = cupy.asarray(rng.random((n * 64, 32)))
        right = cupy.asarray(rng.random((32, 64)))
        np.testing.assert_allclose((left @ right).get(), left.get() @ right.get(), rtol=1e-12)
        for name in ("pool1", "pool2", "fc2"):
            assert_runs(cublas[name], n, rng)


run = partial(terminal.run, "variants", "--matrix")


def test_matrix_is_printed_with_rows_and_reasons():
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


@pytest.mark.parametrize("width", [60, 80, 140])
def test_matrix_fits_80_columns(width):
    lines = plain(matrix_lines(CELLS, width))
    assert max(map(len, lines)) <= max(width, 80)
    assert not any(line != line.rstrip() for line in lines)
    assert REASON in " ".join(" ".join(lines).split())


def test_matrix_rows_of_one_stage_or_kind():
    rows = re.findall(r"^(\w+) ", run("pool").output.partition("on this")[0], flags=re.M)
    assert rows == ["cpu", "pool1", "pool2", "cuda", "pool1", "pool2"]
    assert "argmax" not in run("fc2").output


def test_matrix_as_json():
    document = json.loads(run("--json").output)
    assert (document["schema"], document["command"]) == (1, "variants")
    assert document["matrix"] == [cell.as_json() for cell in CELLS]
    (last, first) = document["matrix"][-1], document["matrix"][35]
    assert last == {"stage": "argmax", "family": "fft", "device": "cuda", "variant": None,
                    "copies": False, "refused": REASON}  # fmt: skip
    assert first["copies"] and first["variant"] == "serial.loops"
