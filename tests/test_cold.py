"""What a fresh process loads, and what it leaves alone."""

from __future__ import annotations

import atexit
import gc
import subprocess
import sys

import numpy as np
import pytest

from lenetgpu import __main__, cli
from lenetgpu.lab import infer
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import summarise
from lenetgpu.stages import registry


def fresh(code):
    """What `code` prints in a process of its own, line by line."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def told():
    return [name for name, offer in registry._OFFERS.items() if offer.families is not None]


@pytest.mark.parametrize("module", told())
def test_a_module_registers_the_families_that_are_told_of_it(module):
    registry.import_offered()
    made = [
        (kind, name.split(".")[0])
        for (kind, name), made in registry.REGISTRY.items()
        if f"{made.run.__module__}.".startswith(f"{module}.")
    ]
    offered = registry._OFFERS[module]
    assert {family for _, family in made} == offered.families
    assert {kind for kind, _ in made} <= set(offered.kinds)


ORDER = "from lenetgpu.stages import {0}; {1}[print(v.kind, v.full_name) for v in variants()]"


def test_the_order_of_variants_is_that_of_the_files_whatever_is_asked_first():
    first = "find('argmax', 'numpy', 'cpu'); find('conv', 'best', 'cuda'); "
    assert fresh(ORDER.format("variants", "")) == fresh(ORDER.format("find, variants", first))


FAR = {"conv.convnet2", "conv.prefetch", "conv.texture", "conv.fft", "conv.tuned", "conv.cublas",
       "fused.block", "fused.cuda_cores", "fused.mma", "fused.wgmma.int8_features"}  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "device", "near", "far"),
    [
        ("tiled", "cpu", "conv.tiled", FAR | {"fused.wgmma"}),
        ("fp16", "cuda", "fused.wgmma.fp16_features", FAR | {"conv.tiled", "pool.mean"}),
    ],
)
def test_a_plan_is_resolved_without_importing_what_it_does_not_run(plan, device, near, far):
    modules = fresh(
        f"import sys; from lenetgpu.plan import resolve; resolve({plan!r}, {device!r});"
        "print(*sys.modules, sep='\\n')"
    )
    ours = {name.removeprefix("lenetgpu.stages.") for name in modules}
    assert near in ours and ours & far == set()


NEVER = {"scipy", "cupyx", "matplotlib", "torch", "jax", "onnx", "onnxruntime", "pandas",
         "rich", "cuda.bindings.nvrtc"}  # fmt: skip
INFER = """
import os, sys
from lenetgpu.cli import main
try:
    main(["infer", *sys.argv[1:], "--no-progress", "--limit", "31"])
finally:
    loaded = [name for name in sys.modules if sys.modules[name] is not None]
    os.write(2, ("loaded " + " ".join(loaded)).encode())
"""


def loaded_by(*words):
    """The modules of a fresh process that labelled 31 of its digits: too many to show each."""
    command = [sys.executable, "-c", INFER, *map(str, words)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stderr.rpartition("loaded ")[2].split())


@pytest.mark.parametrize("plan", ["serial", "fp32", "auto"])
def test_infer_leaves_alone_what_it_does_not_need(plan):
    loaded_by("--device", "cpu", "--plan", plan)  # compiles, and checks the plan
    loaded = loaded_by("--device", "cpu", "--plan", plan)
    assert "numpy" in loaded and loaded & (NEVER | {"cupy", "cuda"}) == set()
    assert ("numba" in loaded) == (plan == "serial")
    assert ("numpy.ma" in loaded) == (plan == "serial")  # Numba's
    unused = {"lenetgpu.measure.rounds", "lenetgpu.measure.bench", "lenetgpu.gpu.software",
              "lenetgpu.measure.roofline", "lenetgpu.lab.render"}  # fmt: skip
    assert loaded & unused == set()


@pytest.mark.gpu
def test_infer_on_a_gpu_loads_no_compiler_and_no_science():
    loaded_by("--device", "cuda")  # compiles and chooses, where nobody did
    loaded = loaded_by("--device", "cuda")
    assert "cupy" in loaded
    assert {name for name in loaded if name.startswith(("cupyx.scipy", "cuda.bindings"))} == set()
    assert loaded & (NEVER - {"cupyx"} | {"numpy.ma", "numba"}) == set()


def test_images_of_idx_files_are_read_without_hdf5(tmp_path):
    file = tmp_path / "three-images-idx3-ubyte"
    sizes = b"".join(n.to_bytes(4, "big") for n in (3, 28, 28))
    file.write_bytes(bytes([0, 0, 8, 3]) + sizes + bytes(3 * 784))
    code = f"""
import pathlib, sys
from lenetgpu.files.source import open_source
with open_source(pathlib.Path({str(file)!r})) as source:
    print(len(source.whole()), "h5py" in sys.modules)
"""
    assert fresh(code) == ["3 False"]


@pytest.fixture
def collecting():
    """The collector as it was, afterwards; what was frozen is not any more."""
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize(("words", "looks"), [(["infer"], False), (["profile"], True), ([], True)])
def test_a_short_process_does_not_look_for_garbage(monkeypatch, collecting, words, looks):
    found, at_exit = [], []
    monkeypatch.setattr(sys, "argv", ["lenetgpu", *words])
    monkeypatch.setattr(cli, "main", lambda: found.append(gc.isenabled()))
    monkeypatch.setattr(atexit, "register", at_exit.append)
    __main__.main()
    assert found == [looks]
    assert at_exit == ([] if looks else [gc.freeze])


@pytest.mark.parametrize("looked", [True, False])
def test_garbage_is_looked_for_from_when_images_are_computed(monkeypatch, collecting, looked):
    frozen, states = gc.get_freeze_count(), []
    whole = infer._Run.whole
    monkeypatch.setattr(
        infer._Run, "whole", lambda run: states.append(gc.isenabled()) or whole(run)
    )
    if not looked:
        gc.disable()
    infer.infer(Request(device="cpu", plan="serial", limit=2))
    assert states == [True]
    assert (gc.get_freeze_count() == frozen) == looked


@pytest.mark.parametrize("count", [1, 2, 3, 99, 1000])
def test_percentiles_are_numpys(rng, count):
    """Whose own import its masked arrays, a tenth of a short process."""
    samples = rng.standard_normal(count).tolist()
    found = summarise(samples)
    wanted = np.percentile(samples, [5, 50, 95, 99])
    np.testing.assert_allclose([found.p05, found.median, found.p95, found.p99], wanted, rtol=1e-12)
    for none in ([], [*samples, float("nan")]):
        assert np.isnan([summarise(none).p05, summarise(none).median, summarise(none).p99]).all()
