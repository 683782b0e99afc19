"""Winograd on a CPU: supported shapes, short batches, narrow vectors, plans, cached code."""

import json
import platform
from pathlib import Path

import numpy as np
import pytest
from terminal import python

from lenetgpu.check.judge import TOLERANCE, check_variant, judge
from lenetgpu.check.reference import random_input, reference, reference_stages
from lenetgpu.cpu import native as code
from lenetgpu.cpu import threads
from lenetgpu.cpu.native import Emitted
from lenetgpu.network import FEATURES, Features
from lenetgpu.pipeline import CPU_CHUNK, Pipeline
from lenetgpu.plan import resolve
from lenetgpu.problems import Conv, ConvPool
from lenetgpu.stages import find
from lenetgpu.stages.fused.winograd import features
from lenetgpu.stages.fused.winograd.kernel import FEATURES as FEATURE_KERNEL
from lenetgpu.stages.prepared import PreparedKernel
from lenetgpu.stages.registry import find_span

BLOCKED = find("conv", "winograd", "cpu")
POOLED = find_span("conv_pool", "winograd", "cpu")
WHOLE = find_span(FEATURES, "winograd", "cpu")


@pytest.mark.parametrize(
    ("side", "channels", "filters", "n"),
    [(8, 16, 32, 1), (8, 48, 96, 9), (12, 32, 64, 3), (20, 16, 32, 4)],
)
def test_other_sizes_are_correct(side, channels, filters, n, rng):
    """A tile of 8 windows covers 2 to 8 images, and one image may fill several tiles."""
    conv = Conv(side, side, channels, filters, 5, 5)
    for variant, problem in ((BLOCKED, conv), (POOLED, ConvPool(conv))):
        x, w = random_input(variant.kind, problem, n, rng)
        verdict = check_variant(variant, problem, x, w, reference(variant.kind, x, w, problem))
        assert verdict.passed, f"{verdict} for {problem}"


def errors(channels, filters, draws):
    """Return each draw's error on the smallest map: few outputs, so a small largest one."""
    problem, found = Conv(8, 8, channels, filters, 5, 5), []
    for seed in range(draws):
        x, w = random_input("conv", problem, 1, np.random.default_rng(seed))
        prepared = PreparedKernel(BLOCKED, problem, [w], 1)
        y = prepared.output(1)
        prepared.run(x, y)
        found.append(judge(y, reference("conv", x, w, problem), "fp32").error)
    return found


@pytest.mark.parametrize("channels", [16, 96])
def test_error_does_not_grow_with_channels(channels):
    """A single sum over 96 channels has an error of 5.5e-6, and sometimes exceeds the tolerance."""
    assert np.median(errors(channels, 32, 24)) < 3e-6


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "filters"), [(16, 32), (48, 96)])
def test_tolerance_holds_in_thousands_of_draws(channels, filters):
    assert max(errors(channels, filters, 2_000)) < 0.95 * TOLERANCE["fp32"]


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (Conv(12, 12, 32, 64, 5, 5, stride=2), "5x5 filters with stride 1 and no padding"),
        (Conv(13, 13, 32, 64, 5, 5), "square maps whose outputs come in fours"),
        (Conv(12, 12, 32, 48, 5, 5), "channels in 16s and filters in 32s"),
    ],
)
def test_unsupported_shapes_are_refused(problem, why):
    assert BLOCKED.refusal(problem) == POOLED.refusal(ConvPool(problem)) == f"supports {why}"


def weights(rng):
    return random_input(FEATURES, Features(), 1, rng)[1]


def test_workspace_keeps_nothing_from_earlier_images(rng):
    """A thread's workspace is reused: by fewer images, and after NaN."""
    w = weights(rng)
    images = rng.random((8, 28, 28, 1)).astype(np.float32)
    problem = Features(writes="NC")
    prepared = PreparedKernel(WHOLE, problem, w, 64)
    expected = reference(FEATURES, images, w, problem)
    for before in (np.full((64, 28, 28, 1), np.nan, np.float32), 3e4 * images):
        prepared.run(before, np.empty((len(before), 1024), np.float32))
        for n in (1, 2, 7):
            y = np.full((n, 1024), np.nan, np.float32)
            prepared.run(images[:n], y)
            assert judge(y, expected[:n], "fp32").passed


def test_bytes_and_floats_give_the_same_output(rng):
    w = weights(rng)
    pixels = rng.integers(0, 256, (5, 28, 28, 1), dtype=np.uint8)
    prepared = PreparedKernel(WHOLE, Features(writes="NC"), w, 5)
    expected = reference(FEATURES, pixels / 255.0, w, Features())
    floats = (pixels / np.float32(255)).astype(np.float32)
    for images in (pixels, floats, floats.astype(np.float64), pixels.repeat(2, 0)[::2]):
        y = np.full((5, 1024), np.nan, np.float32)
        prepared.run(images, y)
        assert judge(y, expected, "fp32").passed


def test_any_number_of_threads_is_correct(rng):
    w = weights(rng)
    x = rng.random((67, 28, 28, 1)).astype(np.float32)
    expected = reference(FEATURES, x, w, Features())
    made = PreparedKernel(WHOLE, Features(writes="NC"), w, 67)
    threads.set_threads(5)
    try:
        for prepared in (made, PreparedKernel(WHOLE, Features(writes="NC"), w, 67)):
            y = np.full((67, 1024), np.nan, np.float32)
            prepared.run(x, y)
            assert judge(y, expected, "fp32").passed
    finally:
        threads.set_threads(None)


@pytest.mark.parametrize("power", [-60, 40])
def test_weights_of_any_scale_with_zeros(power, rng):
    """Sums of products of four tensors stay in fp32's range; pixels are at most 1."""
    w = tuple(np.ldexp(one, power // 2).astype(np.float32) for one in weights(rng))
    w[0][..., ::2] = w[1][..., 1::3] = w[1][:, :, ::5] = 0
    x = rng.random((4, 28, 28, 1)).astype(np.float32)
    x[::2] = 0
    verdict = check_variant(WHOLE, Features(writes="NC"), x, w, reference(FEATURES, x, w, None))
    assert verdict.passed, verdict


def test_default_cpu_plan(shipped_weights, rng):
    plan = resolve("auto", "cpu")
    assert plan.stages[0].variant.full_name == "winograd.features"
    assert resolve("tiled", "cpu").stages[0].name == "conv1"
    images = rng.integers(0, 256, (CPU_CHUNK + 9, 28, 28, 1), dtype=np.uint8)
    pipeline = Pipeline(plan, shipped_weights, len(images))
    assert pipeline.chunk == len(images) > CPU_CHUNK
    assert Pipeline(resolve("tiled", "cpu"), shipped_weights, len(images)).chunk == CPU_CHUNK
    pipeline.poison()
    exact = reference_stages(images, shipped_weights)
    np.testing.assert_array_equal(pipeline.run(images), exact["argmax"])
    assert judge(pipeline.scores(len(images)), exact["fc2"], "fp32").passed


def test_later_stage_override_keeps_the_fused_span():
    def names(overrides):
        return {s.name: s.variant.full_name for s in resolve("fp32", "cpu", overrides).stages}

    found = names({"fc1": "serial"})
    assert found["conv1+pool1+conv2+pool2"] == "winograd.features"
    assert found["fc1"] == "serial.loops"
    assert list(names({"pool1": "serial"}))[:4] == ["conv1", "pool1", "conv2", "pool2"]
    assert names({"conv2": "winograd"})["conv2+pool2"] == "winograd.pooled"
    assert names({"conv2": "winograd.blocked"})["conv2"] == "winograd.blocked"


NARROW = """
import json, sys
import numpy as np
from lenetgpu.check.judge import check_variant
from lenetgpu.check.reference import random_input, reference
from lenetgpu.check.warmup import network_problems
from lenetgpu.cpu.vector import WIDTH
from lenetgpu.stages import variants
found = {}
for variant in variants(device="cpu"):
    if variant.family in ("tiled", "winograd"):
        for problem in network_problems(variant):
            x, w = random_input(variant.kind, problem, 5, np.random.default_rng(1))
            verdict = check_variant(variant, problem, x, w, reference(variant.kind, x, w, problem))
            found[f"{variant.full_name} {problem}"] = verdict.passed
print(json.dumps([WIDTH, found]))
"""
SSE = "+64bit,+sse,+sse2"
AVX2 = SSE + ",+sse3,+ssse3,+sse4.1,+sse4.2,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,+cx16"


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names features of x86-64")
@pytest.mark.parametrize(("name", "features", "width"), [("x86-64", SSE, 4), ("haswell", AVX2, 8)])
def test_narrower_vectors_are_correct(name, features, width, tmp_path):
    """Compile as Numba does for another processor; this one must support its features."""
    from llvmlite.binding import get_host_cpu_features

    there = get_host_cpu_features()
    if lacking := [word for word in features.replace("+", "").split(",") if not there.get(word)]:
        pytest.skip(f"this processor lacks {', '.join(lacking)}")
    asked = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    done = python("-c", NARROW, **asked, LENETGPU_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    found, right = json.loads(done.stdout)
    assert found == width
    assert len(right) >= 7 and all(right.values()), right


def test_cache_key_covers_all_code_inputs(monkeypatch):
    """The emitting files, LLVM, the processor with its features, and the kernel's name."""
    kernel = Emitted("plus_one", 2, lambda v, x, y: v.store(v.add(v.load(x), v.all(1.0)), y))
    keys = {code.key(kernel, b""), code.key(kernel, b"a file"), code.key(FEATURE_KERNEL, b"")}
    for module, name, value in (
        (code, "_sources", lambda: b"others"),
        (code, "processor", lambda: ("another", "+sse")),
        (code, "processor", lambda: ("another", "+sse,+sse2")),
        (code.llvmlite, "__version__", "0"),
    ):
        monkeypatch.setattr(module, name, value)
        keys.add(code.key(kernel, b""))
    assert len(keys) == 7


def test_network_kernel_cache_depends_on_network_source(monkeypatch, rng):
    asked = []
    monkeypatch.setattr(features, "native", lambda kernel, *sources: asked.append(sources))
    PreparedKernel(WHOLE, Features(writes="NC"), weights(rng), 1)
    assert [{Path(one).name for one in sources} for sources in asked] == [
        {"kernel.py", "network.py"}
    ]
