"""Occupancy and waves: computed by hand, the paper's own case, and the driver's answers."""

from fractions import Fraction
from itertools import islice

import pytest
from problems import ODD, in_layouts

from lenetgpu.gpu.device import driver_gpus
from lenetgpu.gpu.occupancy import (
    PROCESSORS,
    Demand,
    Waves,
    explain_waves,
    filling_batches,
    residency,
)


@pytest.mark.parametrize(
    ("capability", "demand", "by", "limit"),
    [
        # 168 x 32 = 5,376 registers a warp: 3 in each quarter of 16,384, so 12 warps of 4 a block
        (90, Demand(168, 128, 0), (3, 228, 16, 32), "registers"),
        # 33 registers round up to 1,280 a warp, not 1,056: 12 in each quarter, not 15
        (90, Demand(33, 256, 0), (6, 228, 8, 32), "registers"),
        # 48 KiB + 1 KiB for the driver: 228 / 49 = 4
        (90, Demand(32, 128, 48 << 10), (16, 4, 16, 32), "shared memory"),
        (86, Demand(32, 128, 48 << 10), (16, 2, 12, 16), "shared memory"),
        # the driver reserves nothing on 7.5; 100 bytes round up to 256
        (75, Demand(32, 256, 100), (8, 256, 4, 16), "threads"),
        (75, Demand(32, 256, 0), (8, None, 4, 16), "threads"),
        (89, Demand(16, 32, 0), (128, 100, 48, 24), "blocks"),
        # 5 warps are checked as 8: 8 x 8,192 registers fit, 12 x 8,192 do not
        (90, Demand(255, 160, 0), (1, 228, 12, 32), "registers"),
        (90, Demand(255, 288, 0), (0, 228, 7, 32), "registers"),
        (90, Demand(0, 32, 0), (None, 228, 64, 32), "blocks"),
    ],
)
def test_occupancy_by_hand(capability, demand, by, limit):
    held = residency(demand, PROCESSORS[capability])
    assert (held.by_registers, held.by_shared, held.by_threads, held.by_hardware) == by
    assert held.blocks == min(count for count in by if count is not None)
    assert held.limit == limit


@pytest.mark.parametrize(
    ("per_image", "at_once", "expected"),
    [
        (32, 132, [4, 8, 12, 33, 37]),  # 128 of 132; 16 images' last wave has 116, 88 %
        (Fraction(1, 2), 100, [200, 400, 600, 800, 1000]),
    ],
)
def test_batches_that_fill_whole_waves(per_image, at_once, expected):
    found = list(islice(filling_batches(per_image, at_once), 5))
    for batch in found:
        assert Waves(-(-batch * per_image // 1), at_once).last >= 0.9
    assert found == expected


def test_occupancy_is_explained():
    """Table 1 on a GTX 480: 28 registers, 16 x 4 threads, 3,900 bytes, 15 multiprocessors."""
    lines = dict(explain_waves(Demand(28, 64, 3900), PROCESSORS[20], 15, 120, Fraction(120, 128)))
    assert lines["by registers (2)"] == "18 (32,768 / 1,792)"
    assert lines["by shared memory (3)"] == "12 (49,152 / 3,968)"
    assert lines["blocks/SM (4)"] == "8, limited by blocks"
    assert lines["occupancy"] == "33%"
    assert lines["waves"] == "120 / (8 x 15) = 1.00, the last 100% full"
    assert lines["full batches"] == "128, 256, 384, 512, 640"


@pytest.mark.gpu
def test_occupancy_agrees_with_the_driver(cupy):
    import numpy as np

    from lenetgpu.check.reference import random_input
    from lenetgpu.check.warmup import network_problems
    from lenetgpu.gpu import machines
    from lenetgpu.gpu.launch import active_blocks, demand_of, record
    from lenetgpu.layouts import from_nhwc, physical_shape
    from lenetgpu.network import CLASSIFIER, FEATURES
    from lenetgpu.stages import variants

    limits = machines.current().limits
    have = cupy.cuda.Device().attributes
    gpu = driver_gpus()[cupy.cuda.runtime.getDevice()]
    assert limits.registers == have["MaxRegistersPerMultiprocessor"]
    assert limits.shared_bytes == have["MaxSharedMemoryPerMultiprocessor"]
    assert limits.warps == have["MaxThreadsPerMultiProcessor"] // 32
    assert limits.blocks == have["MaxBlocksPerMultiprocessor"]
    rng, seen = np.random.default_rng(0), {}
    for v in variants(device="cuda"):
        if v.kind in (FEATURES, CLASSIFIER) or not v.needs.met_by(gpu):
            continue
        for base in [*network_problems(v)[:2], *ODD.get(v.kind, [])[:2]]:
            for problem in in_layouts(v, base)[:1]:
                x, w = random_input(v.kind, problem, 3, rng)
                held = x if problem.reads == "NC" else from_nhwc(x, problem.reads)
                is_label = problem.writes == "N"
                y = cupy.empty(
                    physical_shape(problem.writes, 3, problem.out_shape),
                    np.int32 if is_label else np.float32,
                )
                state = None if w is None else cupy.asarray(w)
                if v.prepare is not None:
                    state = v.prepare(w, problem, 3)
                with record() as launches:
                    v.launch(cupy.asarray(np.ascontiguousarray(held)), state, y, problem)
                seen |= dict.fromkeys(launches)
    assert seen
    for launched in seen:
        found = residency(demand_of(launched), limits)
        assert found.blocks == active_blocks(launched), f"{launched}: {found}"
