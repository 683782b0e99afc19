"""Cheats known from kernel leaderboards are reported WRONG, and their honest twins right."""

import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from compiling import compiles

from lenetgpu.check import judge
from lenetgpu.check.reference import network_reference, random_input, reference
from lenetgpu.dispatch.candidates import stage_candidates
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.gpu import nvrtc
from lenetgpu.gpu.device import activate
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.ini import ini
from lenetgpu.measure import plugins, rounds, timing
from lenetgpu.measure.bench import StageBench, stage_of
from lenetgpu.measure.conv_bench import Case
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.plan import choose_device
from lenetgpu.problems import Conv, Fc, Pool
from lenetgpu.stages import plugin_files
from lenetgpu.stages.prepared import PreparedKernel

BROKEN = Path(__file__).parent / "broken"
WHY = ini(BROKEN / "why.ini")
LIMITS = Ceilings("any", 1e3, 10.0, 0.0)


@pytest.fixture(scope="module")
def facts(shipped_weights):
    return network_reference(load_dataset(assets.default_digits()).images[:100], shipped_weights)


def compared(work, *paths, gpu=None, kind="pool"):
    """Return candidates of the files by name, compared with the first of them."""
    found = plugins.Plugins(paths, gpu)
    candidates = [found.candidate(one, work) for one in found.of_kind(kind)[0]]
    done = rounds.compare("any", candidates, candidates[0].name, rounds.Effort(9, rounds=6))
    return {candidate.name: candidate for candidate in done.candidates}


def stage(facts, what="pool1", images=200):
    return plugins.Work(stage_of(what).problem, images, LIMITS, what, facts)


def plugin(name):
    """Return the variant of that name, from the file named after its family."""
    with plugin_files.loaded([BROKEN / f"{name.partition('.')[0]}.py"]) as found:
        return next(variant for variant in found if variant.full_name == name)


def assert_only_cheats_are_wrong(found, section):
    """Assert that cheats are wrong as broken/why.ini says, and all others right and timed."""
    why = WHY[section]
    for name, candidate in found.items():
        assert candidate.status == ("wrong" if name in why else "right"), candidate.note
        assert bool(candidate.samples) == (name not in why)
        assert re.search(why.get(name, ""), candidate.note)
    assert set(why) < set(found)


@pytest.mark.parametrize("file", ["pools", "partial", "writes"])
def test_cheating_variants_fail_and_honest_twins_pass(file, facts):
    assert_only_cheats_are_wrong(compared(stage(facts), BROKEN / f"{file}.py"), file)


LYING = {"timing", "its code", "sample"}
PATCHES = ("clock", "tolerance", "numpy", "clock, for a moment")


def what_judges():
    return (
        *(time.perf_counter, timing.cpu_ms, timing.cpu_ms.__code__, np.isfinite),
        *(StageBench.sample, judge.TOLERANCE["fp32"], PreparedKernel.run),
    )


@pytest.mark.slow
def test_monkey_patching_the_benchmark_has_no_effect(tmp_path, facts):
    before, text, names = what_judges(), (BROKEN / "timers.py").read_text(), {}
    shutil.copy(BROKEN / "pooled.py", tmp_path)
    for number, mode in enumerate((*LYING, *PATCHES, "run, in a call")):
        made = text.replace('MODE = "nothing"', f"MODE = {mode!r}")
        assert "MODE = " in made
        made = made.replace("def patches(", f"def patches{number}(")
        (tmp_path / f"mine{number}.py").write_text(made)
        names[f"timers.patches{number}"] = mode
    found = compared(stage(facts), *sorted(tmp_path.glob("mine*.py")))
    assert what_judges() == before
    for name, mode in names.items():
        wrong = mode in LYING or mode == "run, in a call"
        expected = "wrong" if wrong else "failed" if mode == "numpy" else "right"
        assert found[name].status == expected, (mode, found[name])
        if mode in LYING:
            assert re.search(
                "claims .* ms where .* ms passed|leaves a wrong output", found[name].note
            )


def test_time_below_device_floor_is_refused():
    pool, conv = Pool(24, 24, 32), Conv(56, 56, 64, 64, 3, 3)
    assert plugins.least_ms(pool, 100, LIMITS) < 1e-3  # bytes that fit a cache take no time
    past = pool.bytes(20_000) - (256 << 20)
    assert plugins.least_ms(pool, 20_000, LIMITS) == pytest.approx(1e3 * past / 1e12)
    least = plugins.least_ms(conv, 1, LIMITS)
    assert least == pytest.approx(1e3 * conv.flop(1) / 9 / 10e12)
    bench = object.__new__(plugins.PluginBench)
    bench.problem, bench.images, bench._work = conv, 1, SimpleNamespace(limits=LIMITS)
    bench._claims = [least]
    assert bench._too_fast() == ""
    bench._claims = [least / 3]
    assert re.search("claims .* ms, but this device needs at least .* ms", bench._too_fast())


def test_parent_checks_outputs_of_its_own_random_images(facts):
    """The parent rejects wrong outputs even if the process reports them as right."""
    one = next(iter(plugins.Plugins([BROKEN / "partial.py"], None).found))
    laid = stage_of("pool1").problem
    bench = plugins.PluginBench(one, None, laid, stage(facts))
    assert one.full_name == "partial.zeros"
    bench._child.ask("check")
    assert "leaves a wrong output of other images, error " in bench._outputs_wrong()


def test_overwritten_weights_are_detected_and_restored(facts):
    weights = facts.weights["fc1"].copy()
    bench = StageBench(plugin("writes.its_weights"), stage_of("fc1"), 20, facts)
    assert not bench.check().verdict.passed
    np.testing.assert_array_equal(facts.weights["fc1"], weights)


@pytest.mark.parametrize(
    ("name", "why"), [("its_weights", "changes its weights"), ("its_input", "changes its input")]
)
def test_single_check_detects_overwritten_inputs(name, why, rng):
    writes = plugin(f"writes.{name}")
    problem = Fc(7, 5, relu=False) if writes.kind == "fc" else Pool(4, 4, 3)
    x, w = random_input(writes.kind, problem, 9, rng)
    expected = reference(writes.kind, x, w, problem)
    verdict = judge.check_variant(writes, problem, x, w, expected)
    assert not verdict.passed and why in verdict.note


def test_variant_correct_only_for_equal_filters_fails(facts):
    bench = StageBench(plugin("partial.same_filters"), stage_of("conv1"), 40, facts)
    assert not bench.check().verdict.passed


@pytest.mark.parametrize(
    ("what", "images"), [("pool1", 70), ("pool1", 1), ("conv1", 70), ("fc1", 70), ("argmax", 70)]
)
def test_cpu_variants_are_not_reported_as_cheats(what, images, facts):
    candidates = stage_candidates(what, "cpu", images, facts, None)
    done = rounds.compare(what, candidates, candidates[0].name, rounds.Effort(0.05, rounds=5))
    assert {c.status for c in done.candidates} - {"refused"} == {"right"}


@pytest.mark.slow
@pytest.mark.parametrize("images", [2, 40])
def test_cheating_convolutions_fail(images):
    case = Case(Conv(7, 6, 3, 5, 3, 3, pad=1), images, gpu=False)
    work = plugins.Work(case.problem, images, LIMITS, case=case, seconds=0.5)
    found = compared(work, BROKEN / "convs.py", kind="conv")
    assert_only_cheats_are_wrong(found, "convs")


@compiles
@pytest.mark.parametrize(
    "entry", ["pool", "slow_pool", "but_tail", "one_too_many", "in_place", "conv"]
)
def test_cheating_kernels_compile(entry):
    names = ("H", "W", "C", "M", "R", "S", "OH", "OW", "STRIDE", "PAD")
    defines = tuple(zip(names, (24, 24, 32, 5, 3, 3, 24, 24, 1, 1), strict=True))
    kernel = Kernel(BROKEN / ("convs.cu" if entry == "conv" else "pools.cu"), entry, defines)
    assert nvrtc.compile_kernel(kernel, "sm_90a").path.is_file()


@pytest.fixture(scope="module")
def gpu():
    chosen, _ = choose_device("cuda")
    activate(chosen)
    return chosen


@pytest.mark.gpu
@pytest.mark.alone
def test_cheating_kernels_fail_and_honest_twin_passes(facts, gpu):
    found = compared(stage(facts, images=1000), BROKEN / "gpu_pools.py", gpu=gpu)
    assert_only_cheats_are_wrong(found, "gpu_pools")


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("images", [1, 40])
def test_cheating_cuda_graph_convolutions_fail(images, gpu):
    case = Case(Conv(7, 6, 3, 5, 3, 3, pad=1), images, gpu=True)
    work = plugins.Work(case.problem, images, LIMITS, case=case, seconds=0.5)
    found = compared(work, BROKEN / "gpu_convs.py", gpu=gpu, kind="conv")
    assert_only_cheats_are_wrong(found, "gpu_convs")


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("what", ["conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "argmax"])
def test_gpu_variants_are_not_reported_as_cheats(what, facts, gpu):
    images = 1 if what == "fc2" else 1000
    candidates = stage_candidates(what, "cuda", images, facts, gpu)
    done = rounds.compare(what, candidates, candidates[0].name, rounds.Effort(9, rounds=6))
    accused = [(c.name, c.note) for c in done.candidates if c.status not in ("right", "refused")]
    assert accused == []
