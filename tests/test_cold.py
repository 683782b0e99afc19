"""Modules that a new process imports, and modules that it does not."""

import pytest
from terminal import python

from lenetgpu.stages import registry


def fresh(code):
    """Return the lines that `code` prints in a process of its own."""
    ran = python("-c", code)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def listed():
    return [name for name, offer in registry._OFFERS.items() if offer.families is not None]


@pytest.mark.parametrize("module", listed())
def test_modules_register_their_declared_families(module):
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


def test_variant_order_is_independent_of_lookup_order():
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
def test_plan_resolution_imports_only_needed_modules(plan, device, near, far):
    modules = fresh(
        f"import sys; from lenetgpu.plan import resolve; resolve({plan!r}, {device!r});"
        "print(*sys.modules, sep='\\n')"
    )
    ours = {name.removeprefix("lenetgpu.stages.") for name in modules}
    assert near in ours and ours & far == set()


def test_package_import_is_light():
    """Only the package's few lines are loaded before first use, and CuPy never for a CPU."""
    light, heavy = fresh(
        "import sys; import lenetgpu; print(*{'numpy'} & set(sys.modules));"
        "lenetgpu.LeNet; print(*{'cupy', 'numba', 'h5py', 'torch', 'click'} & set(sys.modules))"
    )
    assert (light, heavy) == ("", "")


NEVER = {"scipy", "cupyx", "PIL", "matplotlib", "torch", "jax", "onnx", "onnxruntime", "pandas",
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
    """Return the modules loaded by a process that labels 31 digits, too many to print each."""
    ran = python("-c", INFER, *words)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stderr.rpartition("loaded ")[2].split())


@pytest.mark.parametrize("plan", ["serial", "fp32", "auto"])
def test_infer_on_cpu_imports_no_gpu_modules(plan):
    loaded_by("--device", "cpu", "--plan", plan)  # compiles, and checks the plan
    loaded = loaded_by("--device", "cpu", "--plan", plan)
    assert "numpy" in loaded and loaded & (NEVER | {"cupy", "cuda"}) == set()
    assert ("numba" in loaded) == (plan == "serial")
    assert ("numpy.ma" in loaded) == (plan == "serial")  # Numba's
    unused = {"lenetgpu.measure.rounds", "lenetgpu.measure.bench", "lenetgpu.gpu.software",
              "lenetgpu.measure.roofline", "lenetgpu.lab.tables"}  # fmt: skip
    assert loaded & unused == set()


@pytest.mark.gpu
def test_infer_on_gpu_imports_no_compiler_or_scipy():
    loaded_by("--device", "cuda")  # compiles and chooses, where nobody did
    loaded = loaded_by("--device", "cuda")
    assert "cupy" in loaded
    assert {name for name in loaded if name.startswith(("cupyx.scipy", "cuda.bindings"))} == set()
    assert loaded & (NEVER - {"cupyx"} | {"numpy.ma", "numba"}) == set()
