"""Tests that grid, registers and occupancy describe the right launch of a variant."""

import pytest

from lenetgpu.check.warmup import network_problems
from lenetgpu.gpu.launch import Launch
from lenetgpu.gpu.nvrtc import Kernel, compile_kernel
from lenetgpu.measure.document import launch_json, launch_of_sums
from lenetgpu.papers.convnet2 import TABLE_1, TABLE_1_BATCH
from lenetgpu.problems import Conv
from lenetgpu.stages import find, variants

LAYER_6 = Conv(15, 15, 1024, 1024, 3, 3, pad=1, reads="NCHW", writes="NCHW")


def registers(kernel: Kernel) -> int:
    return compile_kernel(kernel, "sm_90a").resources.registers


def launches(variant, problem, blocks=None):
    """Return one launch per entry that the variant names; the helper has the most threads."""
    kernels = {kernel.entry: kernel for kernel in variant.kernels(problem, 1)}
    return [Launch(one, ((blocks or {}).get(one.entry, 8),), (256,), 0) for one in kernels.values()]


@pytest.mark.parametrize(
    ("kind", "name", "problem", "helper", "sums"),
    [
        ("conv", "texture.split", LAYER_6, "fill_texture", "conv_texture"),
        ("conv", "winograd.f2", LAYER_6, "winograd_input", "conv_tuned"),
        ("conv", "convnet2.rolled", None, "conv_transpose", "conv_rolled"),
        ("pool", "unrolled.windows", None, "unroll_windows", "box_product"),
        ("fc", "unrolled.naive", None, "relu_in_place", "conv_naive"),
    ],
)  # fmt: skip
def test_helper_launches_are_ignored(kind, name, problem, helper, sums):
    variant = find(kind, name, "cuda")
    problem = problem or next(iter(network_problems(variant)))
    made = launches(variant, problem, {helper: 100_000})
    assert {helper, sums} <= {one.kernel.entry for one in made}
    for order in (made, made[::-1] if len(made) > 2 else made):
        found = launch_of_sums(order, variant, registers)
        assert found is not None and found.kernel.entry == sums


def test_kernel_beside_its_launcher_breaks_a_tie():
    variant = find("conv", "convnet2.rolled", "cuda")
    kernels = {one.entry: one for one in variant.kernels(TABLE_1, TABLE_1_BATCH)}
    sums, copy = kernels["conv_rolled"], kernels["conv_transpose"]
    made = [Launch(one, (8,), (64,), 0) for one in (copy, sums, copy)]
    found = launch_of_sums(made, variant, lambda kernel: 32)
    assert found is not None and found.kernel == sums
    last = launch_of_sums([made[1], made[0]], None, lambda kernel: 32)
    assert last is not None and last.kernel == copy


def test_largest_launch_of_a_kernel_counts():
    variant = find("conv", "texture.slides", "cuda")
    fill, slides = launches(variant, LAYER_6)
    small = Launch(slides.kernel, (2,), (256,), 0)
    assert launch_of_sums([fill, slides, fill, small], variant, registers) == slides


def test_library_helper_launches_are_ignored():
    libraries = [v for kind in ("conv", "pool", "fc", "argmax") for v in variants(kind)
                 if v.needs.device == "cuda" and v.family in ("cublas", "fft")]  # fmt: skip
    assert len(libraries) >= 8 and launch_of_sums([], None, registers) is None
    for variant in libraries:
        made = launches(variant, next(iter(network_problems(variant))))
        assert made and launch_of_sums(made, variant, registers) is None
        assert set(launch_json(made, variant).values()) == {None}
