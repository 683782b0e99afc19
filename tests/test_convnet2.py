"""The cuda-convnet2 paper's ladder: its parameters, refusals and figures, without a GPU."""

from dataclasses import replace

import numpy as np
import pytest
from compiling import compiles

from lenetgpu.gpu import device
from lenetgpu.gpu.nvrtc import compile_kernel
from lenetgpu.papers.convnet2 import SHAPES, STEPS, TABLE_1, TABLE_1_BATCH
from lenetgpu.papers.convnet2_measured import (
    instruction_count,
    longest_span,
    measure_ladder,
    step_kernels,
)
from lenetgpu.problems import Conv
from lenetgpu.stages import find, variants
from lenetgpu.stages.conv.convnet2.engines import inner_tile, outer_tile
from lenetgpu.stages.conv.convnet2.im2col import im2col_tile
from lenetgpu.stages.conv.convnet2.ladder import ROLLED, UNROLLED, Tile, ladder_tile

ALL = [variant for variant in variants("conv", "cuda") if variant.family == "convnet2"]


def test_table_1_tile_matches_the_paper():
    tile = ladder_tile(TABLE_1, TABLE_1_BATCH)
    assert tile == Tile(16, 4, 4, 4, 4, 3)
    assert tile.blocks(TABLE_1, TABLE_1_BATCH) == 120


@pytest.mark.parametrize("images", [1, 8, 9, 128])
@pytest.mark.parametrize("channels", [1, 3, 4, 7, 9, 64])
@pytest.mark.parametrize("filters", [1, 5, 16, 33, 200])
def test_tiles_satisfy_kernel_assertions(images, channels, filters):
    problem = Conv(9, 9, channels, filters, 3, 3)
    plain = ladder_tile(problem, images)
    threads = plain.threads_x * plain.threads_y
    columns = min(plain.filters, threads)
    assert threads % columns == plain.filters % columns == 0
    for engine in (inner_tile(problem, images), outer_tile(problem, images)):
        warps = engine.threads_x * engine.threads_y // 32
        assert engine.cached_pixels * engine.cached_channels % 8 == 0
        assert engine.filters % 16 == engine.images % (8 * warps) == 0
    windows = im2col_tile(problem, images)
    assert windows.images * windows.cached_channels * 4 % 1024 == 0
    assert windows.shared_bytes <= 227 << 10


def test_ladder_steps_and_variants_correspond():
    assert {step.variant for step in STEPS} == {variant.full_name for variant in ALL}
    seen = set()
    for step in STEPS:
        assert step.before in seen | {None}
        assert step.name not in seen
        seen.add(step.name)


@pytest.mark.parametrize("variant", ALL, ids=lambda v: v.name)
def test_paper_shapes_fit_32bit_indices_and_larger_are_refused(variant):
    wide = Conv(50_000, 50_000, 1, 1, 3, 3)
    for problem in [problem for problem, _ in SHAPES.values()] + [wide]:
        found = variant.refusal(replace(problem, reads="NCHW", writes="NCHW"))
        assert "2^31" in found if problem is wide else found is None


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (Conv(9, 9, 6, 4, 3, 3, reads="NHWC", writes="NCHW"), "multiple of 4, needs 6"),
        (Conv(40, 40, 4, 4, 3, 3, stride=9), "strides up to 8, needs 9"),
        (Conv(200, 200, 4, 4, 150, 3), "within 128 pixels"),
        (Conv(9, 9, 4, 4, 3, 3, pad=130), "within 128 pixels"),
    ],
)
def test_index_engine_refuses_in_one_sentence(problem, words):
    assert words in find("conv", "convnet2.index_engine", "cuda").refusal(problem)


def test_span_is_that_of_the_busiest_multiprocessor():
    spans = np.array([[0, 100, 150], [0, 140, 190], [7, 5, 60], [7, 70, 80]])
    assert longest_span(spans) == 90


@compiles
def test_clock_reads_change_no_memory_use():
    for step in STEPS:
        plain, clocked = (
            compile_kernel(kernel, "sm_90a").resources
            for kernel in step_kernels(step, TABLE_1, TABLE_1_BATCH)
        )
        assert plain.stack_bytes == clocked.stack_bytes, step.name
        assert plain.shared_bytes == clocked.shared_bytes, step.name
        assert plain.spill_bytes == clocked.spill_bytes == 0, step.name


@compiles
def test_only_rolled_sums_use_local_memory():
    rolled, unrolled = (
        compile_kernel(step.kernel(TABLE_1, TABLE_1_BATCH), "sm_90a") for step in (ROLLED, UNROLLED)
    )
    assert rolled.resources.stack_bytes == 16 * 4 and unrolled.resources.stack_bytes == 0
    assert rolled.resources.shared_bytes == unrolled.resources.shared_bytes == 3840
    count = instruction_count(rolled.binary, ROLLED.entry)
    assert 100 < count < 1_000 and count < instruction_count(unrolled.binary, UNROLLED.entry)
    with pytest.raises(ValueError, match="no code of absent"):
        instruction_count(rolled.binary, "absent")


@pytest.mark.gpu
def test_every_ladder_step_is_correct_and_timed():
    gpu = device.require_gpu()
    device.activate(gpu)
    rows = measure_ladder(TABLE_1, 9, gpu=gpu)
    assert {row["status"] for row in rows} <= {"right", "refused"}, rows
    for row in rows:
        if row["status"] == "right":
            assert 0 < row["median_us"] <= row["whole_us"] * 1.1 and row["cycles"] > 0, row
            assert row["instructions"] > 100 and row["total_ratio"] > 0, row
