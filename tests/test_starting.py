"""`lenetgpu variants --new`: written variants are correct, and no file is overwritten."""

import json
import shlex
from importlib import resources

import pytest
from compiling import compiles, nvrtc_missing
from conftest import ROOT
from terminal import python, refused, run

from lenetgpu.check.warmup import network_problems
from lenetgpu.gpu import nvrtc
from lenetgpu.stages import plugin_files
from lenetgpu.stages.registry import KINDS

of_each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty folder, used as the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compared(printed, device):
    """Run the printed command for a short time, and return its candidates by name."""
    line = printed.splitlines()[-1].removeprefix("next").strip()
    words = shlex.split(line)[1:]
    result = run(*words, "--only", "mine", "--batch", 4, "--seconds", 0.02,
                 "--device", device, "--json", "-", code=0)  # fmt: skip
    return {entry["name"]: entry for entry in json.loads(result.stdout)["candidates"]}


@of_each_kind
def test_templates_are_correct_on_cpu(kind, fresh):
    result = run("variants", "--new", kind, "my kernels/", code=0)
    assert {path.name for path in (fresh / "my kernels").iterdir()} == {f"{kind}.py", f"{kind}.cu"}
    found = compared(result.output, "cpu")
    (loops,) = [entry for name, entry in found.items() if name == "mine.loops"]
    assert loops["status"] == "right" and loops["median_ms"] > 0
    (kernel,) = [e for n, e in found.items() if n.startswith("mine.per_")]
    said = "compiles for sm_90a" if nvrtc_missing() is None else "not compiled"
    assert kernel["status"] == "refused" and said in kernel["note"]


@pytest.mark.gpu
@pytest.mark.alone
@of_each_kind
def test_templates_are_correct_on_gpu(kind, fresh):
    found = compared(run("variants", "--new", kind, "mine").output, "cuda")
    (kernel,) = [e for n, e in found.items() if n.startswith("mine.per_")]
    assert kernel["status"] == "right" and kernel["median_ms"] > 0


def kernel_of(kind):
    """Load the CUDA variant of `kind` as it is written, for the duration of a block."""
    return plugin_files.loaded([resources.files("lenetgpu.lab") / "start" / f"{kind}.py"])


@pytest.mark.slow
@compiles
@of_each_kind
def test_template_kernels_compile_for_every_architecture(kind):
    with kernel_of(kind) as found:
        (variant,) = [v for v in found if v.needs.device == "cuda"]
        kernels = {k for p in network_problems(variant) for k in variant.kernels(p, 10_000)}
        assert kernels
        for arch in filter(nvrtc.supported, nvrtc.ARCHITECTURES):
            for kernel in kernels:
                used = nvrtc.compile_kernel(kernel, arch).resources
                assert used.spill_bytes == used.stack_bytes == 0, (kernel, arch)


def test_templates_pass_lint(fresh):
    for kind in KINDS:
        run("variants", "--new", kind, "mine")
    for settings in ("--isolated", f"--config={ROOT / 'pyproject.toml'}"):
        for command in (["check"], ["format", "--check"]):
            done = python("-m", "ruff", *command, settings, "--no-cache", "mine", cwd=fresh)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("there", ["fc.py", "fc.cu"])
def test_existing_files_are_not_overwritten(there, fresh):
    (fresh / "mine").mkdir()
    (fresh / "mine" / there).write_text("of mine")
    refused(run("variants", "--new", "fc", "mine"), f"mine/{there}", "stays as it is")
    assert [p.read_text() for p in (fresh / "mine").iterdir()] == ["of mine"]


def test_existing_file_is_no_folder(fresh):
    (fresh / "a-file").write_text("")
    said = "expected a folder or a new name, found the file a-file"
    refused(run("variants", "--new", "conv", "a-file"), said)
    assert [path.name for path in fresh.iterdir()] == ["a-file"]
