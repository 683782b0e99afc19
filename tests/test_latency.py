"""The microbenchmark for N_FMA: its chains on a CPU, its arithmetic, its cycles on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
from test_kernels_on_a_cpu import compiled, folder, pytestmark, started  # noqa: F401

from lenetgpu.gpu import latency, machines
from lenetgpu.gpu.latency import FMA_LATENCY, LOAD_LATENCY, Latency, chain
from lenetgpu.gpu.machines import GTX_1080_TI, H200
from lenetgpu.lab.conv.explain import latency_rows


def run(kernel, args, folder):  # noqa: F811
    library, together = compiled(kernel, folder)
    assert not together
    started(library, together, (1,), (1,), args)


@pytest.mark.parametrize("kernel", FMA_LATENCY, ids=lambda k: str(k.defines[0][1]))
def test_all_multiply_adds_are_executed(kernel, folder):  # noqa: F811
    out, cycles = np.zeros(1, np.float32), np.zeros(1, np.int64)
    run(kernel, (out, cycles, 0.999, 0.001), folder)
    x = 0.999
    for _ in range(kernel.defines[0][1]):
        x = float(np.float32(x * float(np.float32(0.999)) + float(np.float32(0.001))))
    assert out[0] == pytest.approx(x, rel=1e-5) and cycles[0] == 1


@pytest.mark.parametrize("kernel", LOAD_LATENCY, ids=lambda k: str(k.defines[0][1]))
def test_pointer_chase_follows_its_chain(kernel, folder, rng):  # noqa: F811
    steps = kernel.defines[0][1]
    which, following = chain(1 << 16, 8, 4096, rng)
    cells = np.full(1 << 16, -1, np.int32)
    cells[which] = following
    out, cycles = np.zeros(1, np.int32), np.zeros(1, np.int64)
    run(kernel, (out, cycles, cells), folder)
    assert out[0] == which[steps] and cycles[0] == 1


def test_n_fma_matches_the_paper():
    found = Latency(fma=4.0, load=258.0)
    assert found.n_fma(GTX_1080_TI) == GTX_1080_TI.n_fma == 66_048
    assert found.issued(GTX_1080_TI) == 33_024  # 128 cores issue one a clock each
    assert found.busy_warps(GTX_1080_TI) == 16  # 4 cycles x 128 cores / 32 lanes
    assert Latency(fma=4.1, load=700.4).n_fma(H200) == round(700.4 * 256)


def test_latency_is_shown_beside_plan_values():
    found = Latency(fma=4.0, load=650.0)
    rows = dict(latency_rows(lambda: found, replace(H200, latency=700)))
    assert rows["load from global memory"] == "650 cycles, planned with 700"
    assert rows["N_FMA"] == "166,400 multiply-adds, planned with 179,200"
    assert rows["multiply-add"].startswith("4.0 cycles")


@pytest.mark.gpu
@pytest.mark.alone
def test_latency_on_this_gpu():
    machine = machines.current()
    latency.measured.cache_clear()
    found = latency.measured(machine)
    assert 2 <= found.fma <= 10
    assert 100 <= found.load <= 3_000
    latency.measured.cache_clear()
    again = latency.measured(machine)
    assert again.fma == pytest.approx(found.fma, rel=0.02)
    assert again.load == pytest.approx(found.load, rel=0.2)
