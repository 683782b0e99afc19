"""The report's kernels load where they say: the compiler takes no load of w out of a loop.

NVVP lists them with plain pointers. By `__restrict__` ones the stores to y are known to leave w
alone, each element of W' is loaded once an image instead of once a tile, and the load efficiency
is another one than the report's. What a load is promised stands in the PTX: ld.global.nc.
"""

from __future__ import annotations

import pytest
from test_course_kernels import GEOMETRY
from test_kernels_compile import pytestmark  # noqa: F401

from lenetgpu.gpu import compiler, nvrtc
from lenetgpu.gpu.launch import blocks_for
from lenetgpu.gpu.machines import H200
from lenetgpu.gpu.nvrtc import compile_kernel
from lenetgpu.gpu.occupancy import Demand, residency
from lenetgpu.network import stage
from lenetgpu.problems import Conv
from lenetgpu.stages.registry import REGISTRY

CONV1 = stage("conv1").problem
LITERAL = sorted({(kind, name) for _, kind, name, *_ in GEOMETRY if kind != "argmax"})


class AsPtx:
    """NVRTC's functions, with PTX where a cubin is asked for."""

    def __init__(self):
        self._real = compiler.library()

    def __getattr__(self, name):
        return getattr(self._real, name.replace("GetCUBIN", "GetPTX"))


@pytest.fixture
def ptx(monkeypatch):
    """A kernel's PTX, a line an instruction or label."""

    def made(kernel):
        _, options = nvrtc._place(kernel, "compute_90a")
        library = AsPtx()
        with monkeypatch.context() as patch:
            patch.setattr(compiler, "library", lambda: library)
            text, _ = nvrtc._run_nvrtc(kernel, "compute_90a", options)
        return text.decode().splitlines()

    return made


def problems_of(variant):
    found = [problem for _, kind, name, problem, *_ in GEOMETRY
             if (kind, name) == (variant.kind, variant.full_name)]  # fmt: skip
    return [variant.laid_out(problem) for problem in found]


@pytest.mark.parametrize(("kind", "name"), LITERAL)
def test_no_load_is_promised_that_nothing_is_stored_there(ptx, kind, name):
    variant = REGISTRY[kind, name]
    for problem in problems_of(variant):
        for kernel in variant.kernels(problem, 10_000):
            lines = ptx(kernel)
            assert any("ld.global" in line for line in lines)
            assert not [line for line in lines if "ld.global.nc" in line]


def held(name, problem=CONV1):
    """Blocks of a direct kernel that a multiprocessor holds, and its threads."""
    variant = REGISTRY["conv", name]
    (kernel,) = variant.kernels(variant.laid_out(problem), 1)
    sizes, used = dict(kernel.defines), compile_kernel(kernel, "sm_90a").resources
    threads = sizes["BLOCK_W"] * sizes["BLOCK_H"]
    demand = Demand(used.registers, threads, used.shared_bytes)
    return residency(demand, H200.limits).blocks, threads, sizes["RESIDENT"]


def test_two_rungs_of_the_ladder_differ_in_no_launch_bound():
    assert held("direct.shared_constant") == held("direct.whole_warps") == (2, 784, 2)
    wide = Conv(64, 64, 1, 3, 1, 1)
    assert held("direct.shared_constant", wide)[1:] == (1024, 1)
    assert held("direct.whole_warps", wide)[1:] == (1024, 1)


@pytest.mark.parametrize(
    ("name", "together", "side"),
    [("basic", 1, None), ("tight", 1, None), ("shared_constant", 1, 28), ("whole_warps", 1, 28),
     ("two_maps", 2, 8), ("quadrants", 4, 8)],
)  # fmt: skip
def test_what_a_grid_has_no_room_for_is_refused(name, together, side):
    variant = REGISTRY["conv", f"direct.{name}"]
    most = (1 << 16) - 1

    def refusal(problem):
        found = variant.laid_out(problem)
        return found if isinstance(found, str) else None

    assert refusal(Conv(5, 5, 1, most * together, 5, 5)) is None
    more = most * together + 1
    assert f"across the maps, needs {most + 1}" in refusal(Conv(5, 5, 1, more, 5, 5))
    if side is None:
        return
    rows = side * blocks_for(most, 16) + 4
    assert refusal(Conv(rows, side * 15 + 4, 1, 1, 5, 5)) is None
    assert "blocks a map, needs" in refusal(Conv(rows, side * 18 + 4, 1, 1, 5, 5))
