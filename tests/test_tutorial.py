"""docs/tutorial.md: its commands run in order, its steps are correct, its mistake is detected."""

import json
import re
import shlex
import shutil

import pytest
import terminal
from compiling import compiles, nvrtc_missing
from conftest import ROOT

from lenetgpu.gpu import nvrtc
from lenetgpu.network import STAGES
from lenetgpu.problems import Conv
from lenetgpu.stages import plugin_files

STEPS = ROOT / "docs" / "tutorial"
SMALL = Conv(7, 6, 8, 8, 4, 3)
NAMES = [f"step{number}" for number in range(1, 6)]


@pytest.fixture
def tutorial(script):
    return script("tutorial")


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """Change to a folder that holds only the tutorial's files, and return it."""
    shutil.copytree(STEPS, tmp_path / "docs" / "tutorial")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_tutorial_commands_run_in_order(tutorial, fresh):
    """As typed, except for fewer images and less time."""
    for run in tutorial.RUNS:
        words = shlex.split(run.command("cpu"))[1:]
        if run.timed:
            words += ["--batch", "4", "--seconds", "0.02", "--device", "cpu", "--json", "-"]
        result = terminal.run(*words, code=run.code)
        if not run.timed:
            continue
        entries = json.loads(result.stdout)["candidates"]
        own = [e for e in entries if e["name"].startswith(("mine", "step", "wrong"))]
        kernels = [entry for entry in own if entry["status"] == "refused"]
        loops = [entry for entry in own if entry not in kernels]
        assert len(kernels) == len(loops) == len(run.files)
        assert {entry["status"] for entry in loops} == {"wrong" if run.code else "right"}
        said = "compiles for sm_90a" if nvrtc_missing() is None else "not compiled"
        assert all(said in entry["note"] for entry in kernels)
        if run.code:
            assert "unwritten" in loops[0]["note"] and "WRONG: wrong.forgets_zero" in result.stderr


def test_first_step_equals_the_template():
    for ending in (".py", ".cu"):
        written = (ROOT / "lenetgpu" / "lab" / "start" / f"conv{ending}").read_text()
        step = (STEPS / f"step1{ending}").read_text()
        assert step == written.replace('family="mine"', 'family="step1"')


def test_tutorial_page_matches_its_files(tutorial):
    """Its code is that of the steps, its outputs are those of their files and commands."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    assert tutorial.stale(text) == []
    blocks = re.findall(r"```(python|cuda)\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2 * len(NAMES)
    files = {
        end: [path.read_text() for path in STEPS.glob(f"step*{end}")] for end in (".py", ".cu")
    }
    for language, block in blocks:
        end = ".py" if language == "python" else ".cu"
        assert any(block.strip() in file for file in files[end]), block
    step = next(stage.problem for stage in STAGES if stage.name == "conv2")
    assert f"| multiply-adds | {step.flop(1) // 2:,} |" in text


@compiles
def test_tutorial_kernels_compile_for_every_architecture():
    """The first step is omitted: it is the template of `--new`, which has a test of its own."""
    problem = next(stage.problem for stage in STAGES if stage.name == "conv2")
    with plugin_files.loaded([STEPS]) as found:
        kernels = [v.kernels(problem, 1)[0] for v in found if v.kernels and v.family != "step1"]
        assert [kernel.source.stem for kernel in kernels] == NAMES[1:]
        for arch in filter(nvrtc.supported, nvrtc.ARCHITECTURES):
            for kernel in kernels:
                used = nvrtc.compile_kernel(kernel, arch).resources
                assert used.spill_bytes == used.stack_bytes == 0, (kernel, arch)


EVERY = {f"{device} {name}" for device in ("cpu", "cuda") for name in NAMES[1:]}


@pytest.mark.parametrize(
    ("problem", "refusing"),
    [
        (SMALL, set()),
        (Conv(9, 9, 8, 4, 3, 3, stride=2, pad=1), EVERY),
        (Conv(6, 7, 8, 4, 3, 3), {"cpu step4", "cpu step5"}),
        (Conv(6, 38, 8, 32, 3, 3), {"cuda step3"} | {f"cuda step{n}" for n in (4, 5)}),
        (Conv(18, 18, 32, 48, 3, 3), {"cuda step5"}),
    ],
    ids=lambda given: ", ".join(sorted(given)) if isinstance(given, set) else str(given),
)
def test_steps_refuse_unsupported_shapes(problem, refusing):
    with plugin_files.loaded([STEPS]) as found:
        refused = {f"{v.needs.device} {v.family}" for v in found if v.refusal(problem)}
        supported = [v for v in found if v.kernels is not None and not v.refusal(problem)]
        for variant in supported if nvrtc_missing() is None else ():
            assert nvrtc.compile_kernel(*variant.kernels(problem, 1), "sm_90a")
    assert refused == refusing


@pytest.mark.gpu
@pytest.mark.alone
def test_tutorial_commands_run_on_gpu(tutorial, fresh):
    for run in tutorial.RUNS:
        words = shlex.split(run.command("gpu"))[1:]
        if run.timed:
            words += ["--batch", "200", "--seconds", "0.2", "--watch", "0"]
        terminal.run(*words, code=run.code)
