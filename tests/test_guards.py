"""Guards against bad input values, stale caches and mixed-up buffers."""

from dataclasses import replace

import numpy as np
import pytest

from lenetgpu.check.fit import plan_key
from lenetgpu.gpu import nvrtc
from lenetgpu.gpu.nvrtc import Compiled, Kernel, Resources, compile_kernel
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve


@pytest.fixture
def cuda_plan(monkeypatch):
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    return resolve("tiled", "cuda")


def test_plan_key_changes_with_every_input(cuda_plan, monkeypatch):
    keys = [
        plan_key(cuda_plan, "GPU", "uint8", 100),
        plan_key(cuda_plan, "another", "uint8", 100),
        plan_key(cuda_plan, "GPU", "float32", 100),
        plan_key(resolve("unrolled", "cuda"), "GPU", "uint8", 100),
    ]
    stages = cuda_plan.stages
    (kernel,) = stages[0].variant.kernels(stages[0].problem, 100)
    changed = replace(kernel, defines=(*kernel.defines, ("EXTRA", 1)))
    variant = replace(stages[0].variant, kernels=lambda problem, batch: (changed,))
    other = replace(cuda_plan, stages=(replace(stages[0], variant=variant), *stages[1:]))
    keys.append(plan_key(other, "GPU", "uint8", 100))
    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "version", lambda: (13, 1))
        keys.append(plan_key(cuda_plan, "GPU", "uint8", 100))
    hashed = []
    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "source_hash", lambda path: hashed.append(path) or "other sources")
        keys.append(plan_key(cuda_plan, "GPU", "uint8", 100))
    assert len(set(keys)) == len(keys)
    assert plan_key(cuda_plan, "GPU", "uint8", 100) == keys[0]
    assert {path.name for path in hashed} >= {"direct.cu", "unrolled.cu", "mean.cu"} & {
        kernel.source.name for s in stages for kernel in s.variant.kernels(s.problem, 100)
    }


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A stub of NVRTC that records every compilation."""
    asked = []

    def run(kernel, arch, options):
        asked.append((kernel.entry, arch, tuple(options)))
        return b"cubin", "log"

    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(nvrtc, "_run_nvrtc", run)
    known = nvrtc.compiler.Compiler((13, 0), (), "a build")
    monkeypatch.setattr(nvrtc.compiler, "current", lambda: known)
    monkeypatch.setattr(nvrtc, "_parse_resources", lambda *_: Resources(8, 0, 0, 0))
    yield asked
    nvrtc.source_hash.cache_clear()


def test_kernel_key_changes_with_every_input(tmp_path, compiler, monkeypatch):
    source, header = tmp_path / "k.cu", tmp_path / "k.cuh"
    source.write_text('#include "k.cuh"\n')
    header.write_text('#include "deep.cuh"\n')
    (tmp_path / "deep.cuh").write_text("// 1\n")
    kernel = Kernel(source, "k", (("N", 1),))
    first = compile_kernel(kernel, "sm_90a")
    again = compile_kernel(kernel, "sm_90a")
    assert isinstance(first, Compiled) and again == first and len(compiler) == 1
    assert first.path.read_bytes() == b"cubin"
    compile_kernel(kernel, "sm_80")
    compile_kernel(replace(kernel, defines=(("N", 2),)), "sm_90a")
    compile_kernel(replace(kernel, entry="other"), "sm_90a")
    assert len(compiler) == 4
    for path in (tmp_path / "deep.cuh", header, source):
        path.write_text(path.read_text() + "// changed\n")
        nvrtc.source_hash.cache_clear()
        before = len(compiler)
        compile_kernel(kernel, "sm_90a")
        assert len(compiler) == before + 1, path.name
    others = [nvrtc.compiler.Compiler(*of) for of in (((13, 1), (), "a"), ((13, 1), (), "b"))]
    for module, what, value in (
        (nvrtc.compiler, "current", others[0]),
        (nvrtc.compiler, "current", others[1]),
        (nvrtc, "surroundings", ("580.1", None)),
    ):
        monkeypatch.setattr(module, what, lambda value=value: value)
        before = len(compiler)
        compile_kernel(kernel, "sm_90a")
        assert len(compiler) == before + 1, what
    assert any("-DN=2" in options for _, _, options in compiler)


def test_poison_reaches_every_buffer(shipped_weights):
    pipeline = Pipeline(resolve("tiled", "cpu"), shipped_weights, 9)
    pipeline.run(np.zeros((9, 28, 28, 1), np.uint8))
    assert np.isfinite(pipeline.scores(9)).all()
    pipeline.poison()
    assert np.isnan(pipeline.scores(9)).all()
    assert (pipeline.labels == -1).all()
    assert pipeline._arenas
    for arena in pipeline._arenas.values():
        assert np.isnan(arena.view("float32")).all()
