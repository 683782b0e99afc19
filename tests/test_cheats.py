"""Cheats of kernel leaderboards are called WRONG, and their honest twins right."""

from __future__ import annotations

import itertools
import math
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from compiling import compiles

from lenetgpu.check import judge
from lenetgpu.check.gates import Ledger, contradicts
from lenetgpu.check.slots import SPARE, Feed, Slots, Windows, windows
from lenetgpu.check.truth import random_input, reference
from lenetgpu.cli import main
from lenetgpu.dispatch.candidates import default_reference, stage_candidates
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.gpu import nvrtc
from lenetgpu.gpu.device import activate
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.measure import rounds, timing
from lenetgpu.measure.bench import StageBench, stage_of
from lenetgpu.measure.conv_bench import Case, ConvBench, laid_out
from lenetgpu.measure.sampling import fed as fed_calls
from lenetgpu.measure.sampling.facts import truth
from lenetgpu.net.device import choose_device
from lenetgpu.problems import Argmax, Conv, Fc, Pool
from lenetgpu.stages import find, outside, variants
from lenetgpu.stages.mounted import Mounted
from lenetgpu.stages.registry import REGISTRY

BROKEN = Path(__file__).parent / "broken"
FILES = ("stale", "cached", "late", "partial", "writes")


@pytest.fixture(scope="module")
def facts(shipped_weights):
    return truth(load_dataset(assets.default_digits()).images[:100], shipped_weights)


def compared(what, facts, *paths, device="cpu", gpu=None, images=200):
    """Every candidate by name, of the package and of the files."""
    with outside.loaded(paths):
        candidates = stage_candidates(what, device, images, facts, gpu)
        reference = default_reference(what, device, candidates)
        done = rounds.compare(what, candidates, reference, rounds.Effort(9, rounds=6))
    return {candidate.name: candidate for candidate in done.candidates}


def statuses(found):
    return {name: candidate.status for name, candidate in found.items()}


WHY = {
    "stale.keeps_last": "left is wrong",
    "stale.every_second": "left is wrong",
    "stale.every_tenth": "left is wrong",
    "stale.first_calls": "left is wrong",
    "stale.unless_timed": "what its timed calls left is wrong",
    "cached.by_address": "left is wrong",
    "cached.by_identity": "left is wrong",
    "cached.by_shape": "left is wrong",
    "cached.by_first_image": "left is wrong",
    "late.thread": "writes its output after it has returned|unwritten",
    "late.rewrites": "writes its output after it has returned|unwritten",
    "late.afterwards": "writes its output after it has returned|^$",  # or while it is judged
    "partial.zeros": "",
    "partial.without_negatives": "",
    "partial.whole_tiles": "outputs NaN, infinite or unwritten",
    "partial.but_last": "outputs NaN, infinite or unwritten",
    "writes.its_input": "changes its input",
    "writes.behind_its_output": "writes outside its output",
    "writes.before_its_output": "writes outside its output",
}


@pytest.mark.parametrize("file", FILES)
def test_cheats_are_wrong_and_their_twins_right(file, facts):
    found = compared("pool1", facts, BROKEN / f"{file}.py")
    cheats = {name for name in found if name.startswith(f"{file}.")}
    assert cheats == {name for name in WHY if name.startswith(f"{file}.")}
    for name, candidate in found.items():
        assert candidate.status == ("wrong" if name in cheats else "right"), candidate
    for name in cheats:
        assert re.search(WHY[name], found[name].note)
        assert not found[name].samples
    assert any(name.startswith("twin.") for name in found)


def test_the_command_names_a_cheat_and_fails():
    command = ["compare", "pool1", "--with", str(BROKEN / "cached.py"), "--batch", "200",
               "--seconds", "0.5", "--device", "cpu"]  # fmt: skip
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1, result.output
    for name in ("by_address", "by_identity", "by_shape", "by_first_image"):
        assert f"WRONG: cached.{name}, what " in result.stderr
        assert not re.search(rf"cached\.{name} .*\d\.\d{{3}}  ", result.stdout)
    assert "WRONG: twin" not in result.stderr


PATCHES = {
    "clock": "replaces time.perf_counter",
    "timing": r"replaces lenetgpu.measure.sampling.fed.cpu_ms and 1 more",
    "its code": "replaces the code of lenetgpu.measure.timing.cpu_ms",
    "sample": "replaces lenetgpu.measure.bench.StageBench.sample",
    "tolerance": "replaces 'fp32' of lenetgpu.check.judge.TOLERANCE",
    "judge": r"replaces lenetgpu.check.judge.judge_parts|replaces lenetgpu.check.judge.judge",
    "numpy": "replaces numpy.isfinite",
    "rounds": "replaces lenetgpu.measure.rounds._sample",
    "another": "replaces run of the pool variant fused.rows",
    "profile": "replaces the interpreter's trace or profile function",
    "clock, in a call": "replaces time.perf_counter",
    "run, in a call": "replaces lenetgpu.stages.mounted.Mounted.run",
    "clock, for a moment": "replaces time.perf_counter",
}


def patching(folder, mode):
    """A copy of timers.py that does `mode`."""
    shutil.copy(BROKEN / "pooled.py", folder)
    text = (BROKEN / "timers.py").read_text()
    assert 'MODE = "nothing"' in text
    (folder / "mine.py").write_text(text.replace('MODE = "nothing"', f"MODE = {mode!r}"))
    return folder / "mine.py"


def what_judges():
    return (
        *(time.perf_counter, timing.cpu_ms, timing.cpu_ms.__code__, fed_calls.cpu_ms, np.isfinite),
        *(StageBench.sample, judge.judge, judge.judge_parts, judge.TOLERANCE["fp32"]),
        *(rounds._sample, REGISTRY["pool", "fused.rows"].run, Mounted.run, sys.getprofile()),
    )


@pytest.mark.parametrize("mode", ["nothing", *PATCHES])
def test_who_patches_what_judges_is_wrong_and_it_is_put_back(mode, tmp_path, facts):
    before = what_judges()
    found = compared("pool1", facts, patching(tmp_path, mode))
    assert what_judges() == before
    patches = found.pop("timers.patches")
    assert set(statuses(found).values()) == {"right"}
    assert patches.status == ("right" if mode == "nothing" else "wrong")
    assert re.search(PATCHES.get(mode, ""), patches.note)


@pytest.mark.parametrize("what", ["pool1", "conv1", "fc1", "argmax"])
@pytest.mark.parametrize("images", [1, 70])
def test_no_variant_of_the_package_is_accused(what, images, facts):
    found = set(statuses(compared(what, facts, images=images)).values())
    assert found - {"refused"} == {"right"}


def test_a_clock_that_a_call_replaced_is_back_before_the_next_sample(tmp_path, facts):
    clock = time.perf_counter
    with outside.loaded([patching(tmp_path, "clock, in a call")]) as (guest,):
        bench = StageBench(guest, stage_of("pool1"), 200, facts)
        bench.check()
        for _ in range(5):
            bench.sample()
            assert time.perf_counter is clock
        assert not bench.recheck().verdict.passed


def fed(n, turns, step):
    """A feed whose truth is the image's number, with 9 images in a pool of one value each."""
    images = np.arange(9, dtype=np.float32)[:, None, None, None] * np.ones((1, 2, 2, 1), np.float32)
    shape = Windows(n, turns, step)
    mounted = Mounted(find("pool", "serial", "cpu"), Pool(2, 2, 1), (), n)
    slots = Slots(images, shape.span + SPARE)
    y = mounted.output(Feed.outputs(shape, n))
    return mounted, Feed(slots, y, mounted.problem, shape, n, images[:, :1, :1])


def test_a_call_that_is_left_out_shows_wherever_it_is():
    for left_out in range(5):
        mounted, feed = fed(3, turns=3, step=1)
        for _ in range(4):
            feed.renew()
            for turn in range(5):
                x, y = feed.whole()
                if turn != left_out:
                    mounted.run(x, y)
            if not feed.judged("fp32").passed:
                break
        assert feed.judged("fp32").passed == (left_out < 2), left_out  # others wrote over it


def test_images_change_places_and_nothing_is_lost():
    _, feed = fed(4, turns=2, step=1)
    before = feed.slots.which.copy()
    for _ in range(10):
        feed.renew()
    assert (feed.slots.which != before).any()
    assert sorted(feed.slots.which) == sorted(before)
    assert (feed.slots.images[:, 0, 0, 0] == feed.slots.which).all()
    assert feed.slots.intact
    feed.slots.images[0, 0, 0, 0] += 1
    assert not feed.slots.intact
    feed.slots.mend()
    assert feed.slots.intact


def test_windows_take_little_memory_besides():
    for problem in (
        Pool(24, 24, 32),
        Conv(224, 224, 64, 64, 3, 3),
        Fc(1024, 128, relu=True),
        Argmax(10),
    ):
        for device, room in (("cpu", 60_000), ("cuda", 1_000_000)):
            for n in (1, 64, 1000):
                shape = windows(problem, n, device)
                each = 4 * (math.prod(problem.in_shape) + math.prod(problem.out_shape))
                assert (shape.span - n) * each <= max(room, n * each / 8)
                assert shape.turns == 1 or shape.step * math.prod(problem.in_shape) % 16 == 0
    assert windows(Pool(24, 24, 32), 64, "cpu").turns == 3
    assert windows(Pool(24, 24, 32), 64, "cuda").turns > 3


@pytest.mark.parametrize(
    ("claimed", "passed", "wrong"),
    [(4.0, 4.1, False), (4.0, 8.9, False), (4.0, 20.0, True), (20.0, 4.0, True),
     (math.nan, 4.0, True), (0.001, 0.9, False), (0.0, 1.1, True)],
)  # fmt: skip
def test_what_a_clock_contradicts(claimed, passed, wrong):
    assert contradicts(claimed, passed, allowed=1.0) == wrong


def test_a_ledger_believes_most_of_its_samples():
    now = itertools.count()
    ledger = Ledger("cpu", lambda: next(now))  # a second passes between two looks
    ledger.enter(lambda: 1000.0)
    assert not ledger.contradiction
    ledger.enter(lambda: 1.0)
    assert not ledger.contradiction
    ledger.enter(lambda: 1.0)
    assert ledger.contradiction == "claims 1 ms where 1e+03 ms passed"


def test_weights_that_are_written_are_put_back_for_the_others(facts):
    found = compared("fc1", facts, BROKEN / "writes.py")
    guilty = found.pop("writes.its_weights")
    assert (guilty.status, guilty.note) == ("wrong", "changes its weights")
    assert set(statuses(found).values()) == {"right"}
    assert "twin.reads_only" in found


@pytest.mark.parametrize(
    ("name", "why"),
    [("its_input", "changes its input"), ("its_weights", "changes its weights"),
     ("behind_its_output", "writes outside its output")],
)  # fmt: skip
def test_one_check_by_itself_sees_what_is_written(name, why, rng):
    with outside.loaded([BROKEN / "writes.py"]) as found:
        (guest,) = [variant for variant in found if variant.name == name]
    problem = Fc(7, 5, relu=False) if guest.kind == "fc" else Pool(4, 4, 3)
    x, w = random_input(guest.kind, problem, 9, rng)
    expected = reference(guest.kind, x, w, problem)
    verdict = judge.check_variant(guest, problem, x, w, expected)
    assert not verdict.passed
    assert why in verdict.note


def alone(facts, file, name):
    """The bench of one guest of `file`, checked, and the verdict."""
    with outside.loaded([BROKEN / file]) as found:
        (guest,) = [variant for variant in found if variant.name == name]
        bench = StageBench(guest, stage_of("pool1"), 200, facts)
        first = bench.check().verdict.passed
        return first, bench.recheck().verdict


def test_what_no_sample_showed_shows_afterwards(facts):
    first, again = alone(facts, "stale.py", "keeps_last")
    assert first and not again.passed
    assert "what calls after its samples left is wrong" in again.note
    assert alone(facts, "stale.py", "counts_calls")[1].passed


def test_the_check_is_of_calls_as_they_are_timed(facts):
    assert not alone(facts, "partial.py", "but_last")[0]


def test_right_for_equal_filters_only_is_wrong(facts):
    with outside.loaded([BROKEN / "partial.py"]) as found:
        (guest,) = [variant for variant in found if variant.kind == "conv"]
        assert not StageBench(guest, stage_of("conv1"), 40, facts).check().verdict.passed


def convolutions(images, *paths, names=("convs", "twin", "tiled"), device="cpu"):
    """Candidates by name: variants of the families `names` on a small shape."""
    case = Case(Conv(7, 6, 3, 5, 3, 3, pad=1), images, gpu=device == "cuda")
    with outside.loaded(paths):
        fitting = (v for v in variants("conv", device) if v.family in names)
        chosen = [v for v in fitting if not isinstance(laid_out(v, case.problem), str)]

        def build(variant):
            return lambda: ConvBench(variant, laid_out(variant, case.problem), case, 1.0)

        candidates = [rounds.Candidate(v.full_name, build(v), v.precision) for v in chosen]
        done = rounds.compare("a shape", candidates, candidates[0].name, rounds.Effort(0.05))
    return {candidate.name: candidate for candidate in done.candidates}


@pytest.mark.parametrize("images", [2, 40])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("by_address", "left is wrong"),
        ("every_third", "left is wrong"),
        ("its_input", "changes its input"),
        ("thread", "after it has returned|unwritten"),
    ],
)
def test_convolutions_that_cheat_are_wrong(name, why, images, tmp_path):
    text = (BROKEN / "convs.py").read_text().replace('@conv("convs")\ndef ', "def ")
    path = tmp_path / "mine.py"
    path.write_text(text.replace(f"def {name}(", f'@conv("convs")\ndef {name}('))
    found = convolutions(images, path)
    assert statuses(found) == {
        "tiled.blocked": "right", "twin.plain": "right", f"convs.{name}": "wrong",
    }  # fmt: skip
    assert re.search(why, found[f"convs.{name}"].note)


@pytest.mark.parametrize("images", [1, 70])
def test_no_convolution_of_the_package_is_accused(images):
    names = ("serial", "tiled", "unrolled", "fft")
    found = statuses(convolutions(images, names=names))
    assert {name.split(".")[0] for name in found} == set(names)
    assert set(found.values()) == {"right"}


def test_a_seal_that_is_taken_away_is_noticed(tmp_path):
    path = patching(tmp_path, "nothing")
    path.write_text(path.read_text() + "\nfrom lenetgpu.stages import seal\nseal._seals.clear()\n")
    command = ["compare", "pool1", "--with", str(path), "--batch", "10", "--device", "cpu"]
    result = CliRunner().invoke(main, [*command, "--seconds", "0.01"])
    assert result.exit_code == 2
    assert "expected files that leave their seal alone" in result.stderr


@compiles
@pytest.mark.parametrize("entry", ["pool", "slow_pool", "but_tail", "one_too_many", "in_place"])
def test_kernels_that_cheat_compile(entry):
    kernel = Kernel(BROKEN / "pools.cu", entry, (("H", 24), ("W", 24), ("C", 32)))
    assert nvrtc.compile_kernel(kernel, "sm_90a").path.is_file()


@compiles
def test_convolutions_that_cheat_compile():
    names = ("H", "W", "C", "M", "R", "S", "OH", "OW", "STRIDE", "PAD")
    defines = tuple(zip(names, (7, 6, 3, 5, 3, 3, 7, 6, 1, 1), strict=True))
    kernel = Kernel(BROKEN / "convs.cu", "conv", defines)
    assert nvrtc.compile_kernel(kernel, "sm_90a").path.is_file()


ON_A_GPU = {
    "keeps_last": "left is wrong",
    "every_tenth": "left is wrong",
    "by_address": "left is wrong",
    "another_stream": "unwritten|after it has returned",
    "another_stream_later": "left is wrong|claims",
    "but_tail": "left is wrong|unwritten",
    "behind_its_output": "writes outside its output",
    "its_input": "changes its input",
}


@pytest.fixture(scope="module")
def gpu():
    chosen, _ = choose_device("cuda")
    activate(chosen)
    return chosen


@pytest.mark.gpu
@pytest.mark.alone
def test_kernels_that_cheat_are_wrong_and_their_twin_right(facts, gpu):
    path = BROKEN / "gpu_pools.py"
    found = compared("pool1", facts, path, device="cuda", gpu=gpu, images=1000)
    for name, why in ON_A_GPU.items():
        guilty = found.pop(f"gpu_pools.{name}")
        assert guilty.status == "wrong", guilty
        assert re.search(why, guilty.note), guilty
    assert "twin.one_thread_one_output" in found
    assert set(statuses(found).values()) == {"right"}, found


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("images", [1, 40])
def test_convolutions_that_cheat_graphs_are_wrong(images, gpu):
    names = ("gpu_convs", "twin", "direct")
    found = convolutions(images, BROKEN / "gpu_convs.py", names=names, device="cuda")
    guilty = {name for name in found if name.startswith("gpu_convs.")}
    assert len(guilty) == 3
    for name, candidate in found.items():
        assert candidate.status == ("wrong" if name in guilty else "right"), candidate


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("what", ["conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "argmax"])
@pytest.mark.parametrize("images", [1, 1000])
def test_no_variant_of_the_package_is_accused_on_a_gpu(what, images, facts, gpu):
    found = compared(what, facts, device="cuda", gpu=gpu, images=images)
    accused = {name: c.note for name, c in found.items() if c.status not in ("right", "refused")}
    assert accused == {}
