"""docs/tutorial.md: its commands run in order, its steps are right and its mistake is found."""

from __future__ import annotations

import json
import shlex
import shutil

import pytest
from click.testing import CliRunner
from compiling import compiles, nvrtc_missing
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.gpu import nvrtc
from lenetgpu.problems import Conv
from lenetgpu.stages import outside

STEPS = ROOT / "docs" / "tutorial"
SMALL = Conv(7, 6, 8, 8, 4, 3)
NAMES = [f"step{number}" for number in range(1, 6)]


@pytest.fixture
def tutorial(script):
    return script("tutorial")


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A folder with the tutorial's files and nothing else, which commands run in."""
    shutil.copytree(STEPS, tmp_path / "docs" / "tutorial")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_commands_run_in_order_and_do_as_the_page_says(tutorial, fresh):
    """As typed, but for fewer images and less time: no learner waits for a test."""
    for run in tutorial.RUNS:
        words = shlex.split(run.command("cpu"))[1:]
        if run.timed:
            words += ["--batch", "4", "--seconds", "0.02", "--device", "cpu", "--json", "-"]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == run.code, result.output
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


def test_the_first_step_is_what_new_writes():
    for ending in (".py", ".cu"):
        written = (ROOT / "lenetgpu" / "lab" / "start" / f"conv{ending}").read_text()
        step = (STEPS / f"step1{ending}").read_text()
        assert step == written.replace('family="mine"', 'family="step1"')


def test_the_page_is_in_step_with_the_files_and_shows_every_command(tutorial):
    text = (ROOT / "docs" / "tutorial.md").read_text()
    assert tutorial.stale(text) == []
    shown = {name for name, _ in tutorial.parts(text)}
    runs = {run.name for run in tutorial.RUNS if run.timed}
    assert shown == {"new-cpu"} | {f"{n}-{d}" for n in runs for d in ("cpu", "gpu")} | {
        *tutorial.still()
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("$ lenetgpu compare conv2 --with mine/ ", "$ lenetgpu compare conv2 --wit mine/ ",
         "step1-cpu: expected the output of"),
        ("| multiply-adds | 3,276,800 |", "| multiply-adds | 3,276,801 |", "shape: expected"),
        ("const int column = i / M % OW;", "const int column = i % OW;", "step2-code: expected"),
        ("Not yet run on a GPU: `maps_first`", "Run on a GPU: `maps_first`",
         "step2-gpu: expected the output of"),
    ],
)  # fmt: skip
def test_a_page_that_is_out_of_step_is_called_so(tutorial, old, new, said):
    text = (ROOT / "docs" / "tutorial.md").read_text()
    if old not in text:
        pytest.skip("a GPU has run it")
    (found,) = tutorial.stale(text.replace(old, new))
    assert found.startswith(said)


def test_a_step_that_changed_makes_its_outputs_stale(tutorial, tmp_path, monkeypatch):
    shutil.copytree(STEPS, tmp_path / "docs" / "tutorial")
    shutil.copytree(ROOT / "lenetgpu" / "lab", tmp_path / "lenetgpu" / "lab")
    monkeypatch.setattr(tutorial, "ROOT", tmp_path)
    text = (ROOT / "docs" / "tutorial.md").read_text()
    assert tutorial.stale(text) == []
    source = tmp_path / "docs" / "tutorial" / "step3.cu"
    source.write_text(source.read_text().replace("// nobody", "// Nobody"))
    parts = {line.split(":")[0] for line in tutorial.stale(text)}
    assert parts == {"step3-code", "step3-cpu", "step3-gpu", "all-cpu", "all-gpu"}


def test_a_page_written_on_a_cpu_keeps_what_a_gpu_printed(tutorial):
    (run,) = [run for run in tutorial.RUNS if run.name == "step2"]
    begin, end = "<!-- begin:step2-gpu -->\n", "<!-- end:step2-gpu -->"
    assert tutorial.waits(f"{begin}Not yet run on a GPU\n{end}", run)
    printed = f"{begin}```\n$ it\n```\n\nfiles `{run.digest}`.\n{end}"
    assert not tutorial.waits(printed, run)
    assert tutorial.waits(printed.replace(run.digest, "0123456789"), run)


@compiles
def test_its_kernels_compile_for_every_architecture(tutorial):
    """The first step's is what `--new` writes, whose own test compiles it."""
    with outside.loaded([STEPS]) as found:
        problem = tutorial.problem_of_stage()
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
        (Conv(8, 8, 8, 4, 3, 3, pad=1), EVERY),
        (Conv(9, 9, 8, 4, 3, 3, stride=2), EVERY),
        (Conv(6, 7, 8, 4, 3, 3), {"cpu step4", "cpu step5"}),
        (Conv(6, 6, 12, 4, 3, 3), {"cuda step4", "cuda step5"}),
        (Conv(6, 6, 6, 4, 3, 3), {f"{d} step{n}" for d in ("cpu", "cuda") for n in (4, 5)}),
        (Conv(6, 38, 8, 32, 3, 3), {"cuda step3"} | {f"cuda step{n}" for n in (4, 5)}),
        (Conv(6, 6, 1024, 16, 3, 3), {"cuda step3", "cuda step4", "cuda step5"}),
        (Conv(18, 18, 32, 8, 3, 3), set()),
        (Conv(18, 18, 32, 48, 3, 3), {"cuda step5"}),
    ],
    ids=lambda given: ", ".join(sorted(given)) if isinstance(given, set) else str(given),
)
def test_what_a_step_does_not_take_it_refuses(problem, refusing):
    with outside.loaded([STEPS]) as found:
        refused = {f"{v.needs.device} {v.family}" for v in found if v.refusal(problem)}
        taken = [v for v in found if v.kernels is not None and not v.refusal(problem)]
        for variant in taken if nvrtc_missing() is None else ():
            assert nvrtc.compile_kernel(*variant.kernels(problem, 1), "sm_90a")
    assert refused == refusing


@pytest.mark.gpu
@pytest.mark.alone
def test_its_commands_run_on_a_gpu(tutorial, fresh):
    for run in tutorial.RUNS:
        words = shlex.split(run.command("gpu"))[1:]
        if run.timed:
            words += ["--batch", "200", "--seconds", "0.2", "--watch", "0"]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == run.code, result.output
