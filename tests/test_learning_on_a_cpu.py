"""Templates of `variants --new` and the tutorial's steps, loops and kernels, on odd shapes.

The CUDA kernels run as C++, thread by thread.
"""

import pytest
from conftest import ROOT
from problems import in_layouts
from test_kernels_on_a_cpu import assert_right, folder, on_a_cpu, version  # noqa: F401

from lenetgpu.problems import Argmax, Conv, Fc, Pool
from lenetgpu.stages import defines, plugin_files

START, STEPS = ROOT / "lenetgpu" / "lab" / "start", ROOT / "docs" / "tutorial"
STEP = Conv(7, 6, 8, 8, 4, 3)
CASES = {
    START / "conv.py": (Conv(7, 6, 3, 5, 3, 2, stride=2, pad=1), Conv(5, 6, 2, 3, 2, 3)),
    START / "pool.py": (Pool(6, 10, 7),),
    START / "fc.py": (Fc(33, 31, relu=True), Fc(9, 12, relu=False)),
    START / "argmax.py": (Argmax(7),),
    **{STEPS / f"step{number}.py": (STEP,) for number in range(2, 6)},
}
WRONG = STEPS / "wrong" / "wrong.py"

pytestmark = pytest.mark.skipif(version() < 11, reason="no g++ 11 to compile kernels for a CPU")


def assert_all_right(file, problems, rng):
    with plugin_files.loaded([file]) as found:
        assert {variant.needs.device for variant in found} == {"cpu", "cuda"}
        for variant in found:
            if variant.needs.device == "cuda":
                variant.run.__globals__["launch"] = defines.launch  # the one of `on_a_cpu`
            for problem in problems:
                assert_right(variant, in_layouts(variant, problem)[0], 21, rng)


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_templates_and_tutorial_steps_are_correct(file, on_a_cpu, rng):  # noqa: F811
    assert_all_right(file, CASES[file], rng)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_planted_mistake_is_found_on_both_devices(device, on_a_cpu, rng):  # noqa: F811
    with plugin_files.loaded([WRONG]) as found:
        (variant,) = [variant for variant in found if variant.needs.device == device]
        variant.run.__globals__["launch"] = defines.launch
        with pytest.raises(AssertionError, match="unwritten"):
            assert_right(variant, in_layouts(variant, STEP)[0], 2, rng)
