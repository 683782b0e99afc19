"""README's "Add a variant" as printed: pasted into a copy of the package, and used as a plugin."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from compiling import nvrtc_missing
from conftest import ROOT
from terminal import run

from lenetgpu.errors import LenetError
from lenetgpu.gpu import nvrtc
from lenetgpu.measure import plugins
from lenetgpu.measure.bench import stage_of
from lenetgpu.stages import plugin_files

NAME = "ours.per_warp"  # renamed, so that the example itself may be added to the package
NOT_COMPILED = "not compiled: no NVRTC is here that knows such a GPU"
COPIED = ("lenetgpu", "scripts", "tests", "docs", "README.md", "pyproject.toml")


def paste(folder):
    """Write the section's two blocks as ours.py and ours.cu in `folder`; return the first."""
    text = (ROOT / "README.md").read_text()
    section = re.search(r"^## Add a variant\n(.*?)^## ", text, re.MULTILINE | re.DOTALL).group(1)
    for language, ending in (("python", ".py"), ("cuda", ".cu")):
        (block,) = re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        (folder / f"ours{ending}").write_text(re.sub(r"\bmine\b", "ours", block))
    return folder / "ours.py"


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """Return a copy of the repository with the example pasted into stages/pool/."""
    copy = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copied(ROOT / name, copy / name)
    paste(copy / "lenetgpu" / "stages" / "pool")
    return copy


def run_in(copy, *command):
    """Run a Python module in the copy, which must exit with 0; return its output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(copy), "LENETGPU_CACHE": str(copy / "cache")}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=copy, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_pasted_variant_passes_lint_and_types(copied):
    source = copied / "lenetgpu" / "stages" / "pool" / "ours.py"
    run_in(copied, "-m", "ruff", "check", "--no-cache", source)
    run_in(copied, "-m", "ruff", "format", "--check", "--no-cache", source)
    # only the file: checking the whole package again gives the same answer
    assert "no issues" in run_in(copied, "-m", "mypy", "--cache-dir", copied / "types", source)


@pytest.mark.slow
def test_pasted_variant_passes_the_variant_tests(copied):
    printed = run_in(
        copied, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", "addopts=",
        "tests/test_registry.py", "tests/test_docs.py", "tests/test_kernels_compile.py",
        "-k", "test_registry or pool-ours or every_source",
    )  # fmt: skip
    assert re.search(rf"test_registrations_are_complete\[pool-{NAME}\] PASSED", printed)
    for arch in nvrtc.ARCHITECTURES if nvrtc_missing() is None else ():
        passed = re.search(rf"test_variant_kernels_compile\[pool-{NAME}-{arch}\] PASSED", printed)
        assert passed or not nvrtc.supported(arch), arch


def test_pasted_variant_is_listed(copied):
    rows = json.loads(run_in(copied, "-m", "lenetgpu", "variants", "pool", "--json"))["variants"]
    (row,) = [row for row in rows if row["variant"] == NAME]
    assert row["description"] == "Pool one map per warp; each lane computes every 32nd window."
    assert NAME in run_in(copied, "-m", "lenetgpu", "variants", "pool")


def compare(*arguments, code):
    command = ["compare", "pool1", "--batch", 50, "--seconds", 0.1, "--watch", 0.1, *arguments]
    return run(*command, code=code)


def candidate(result):
    found = json.loads(result.stdout)["candidates"]
    return next(entry for entry in found if entry["name"] == NAME)


def test_plugin_is_listed_without_gpu(tmp_path):
    result = compare("--with", paste(tmp_path), "--device", "cpu", "--json", "-", code=0)
    entry = candidate(result)
    assert entry["status"] == "refused"
    compiled = "compiles for sm_90a" if nvrtc_missing() is None else NOT_COMPILED
    assert entry["note"] == f"requires cuda 7.5, found device cpu; {compiled}"
    assert NAME in result.stderr


def test_plugin_note_without_nvrtc_says_not_compiled(tmp_path, monkeypatch):
    def missing():
        raise LenetError("no NVRTC")

    monkeypatch.setattr(nvrtc, "version", missing)
    with plugin_files.loaded([paste(tmp_path)]) as (made,):
        problem = made.laid_out(stage_of("pool1").problem)
        assert plugins.compiles(made, None, problem, 9) == f"; {NOT_COMPILED}"


@pytest.mark.skipif(nvrtc_missing() is not None, reason="no NVRTC to compile with")
def test_plugin_that_does_not_compile_is_broken(tmp_path):
    mine = paste(tmp_path)
    source = mine.with_suffix(".cu")
    source.write_text(source.read_text().replace("blockIdx.x * H", "blockIdx.x * HEIGHT", 1))
    result = compare("--with", mine, "--device", "cpu", "--json", "-", code=1)
    entry = candidate(result)
    assert entry["status"] == "failed"
    assert entry["note"] == (
        'ours.cu, line 3, per_warp for sm_90a: expected it to compile, found: identifier "HEIGHT" '
        "is undefined"
    )
    assert f"WRONG: {NAME}, ours.cu, line 3" in result.stderr


@pytest.mark.gpu
@pytest.mark.alone
def test_plugin_is_correct_and_timed(tmp_path):
    result = compare("--with", paste(tmp_path), "--device", "cuda", "--json", "-", code=0)
    entry = candidate(result)
    assert entry["status"] == "right"
    assert entry["median_ms"] > 0
    assert entry["block"] == [32, 1, 1]
