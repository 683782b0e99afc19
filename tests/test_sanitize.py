"""scripts/sanitize.py with a compute-sanitizer that has findings, has none, crashes or is slow.

On a GPU, run `make sanitize`.
"""

import json
import sys

import pytest
from click.testing import CliRunner

from lenetgpu.gpu.device import Gpu

TOOL = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.3.0.0 (build 1)")
    sys.exit(0)
tool = words[words.index("--tool") + 1]
at = next(k for k, word in enumerate(words) if word.endswith(".py"))
done = subprocess.run([words[at - 1], *words[at:]], stdout=subprocess.PIPE, text=True)
sys.stdout.write(done.stdout)
way = os.environ.get("PRETENDED", "")
planted = words[-1] if "--planted" in words else ""
errors = int(planted == tool)
if way == f"misses {{tool}}":
    errors = 0
if way == f"sees {{tool}} everywhere":
    errors = 1
if way == f"crashes in {{tool}}" and not planted:
    sys.exit("no device")
if way == "race" and tool == "racecheck" and not planted:
    print(os.environ["REPORT"])
    errors = 1
if tool == "racecheck":
    counts = f"{{errors}} hazards displayed ({{errors}} errors, 0 warnings)"
    print("========= RACECHECK SUMMARY:", counts)
else:
    print(f"========= ERROR SUMMARY: {{errors}} errors")
"""
WORKER = """
import os, sys, time
words = sys.argv[1:]
cases = [f"{{name}} | shape {{k}}" for k in range(3) for name in ("conv-a", "pool-b", "plan c")]
if "--planted" in words:
    print("launched", words[-1])
    sys.exit(0)
only = words[words.index("--only") + 1].split(",")
cases = [case for case in cases if any(name in case for name in only)]
if "--list" in words:
    print(*(f"case {{case}}" for case in cases), sep="\\n")
    sys.exit(0)
said = dict(zip(words[::2], words[1::2]))
index, parts = map(int, said["--part"].split("/"))
until = time.monotonic() + float(said["--seconds"])
way, watched = os.environ.get("WORKER", ""), os.environ.get("PRETENDED_TOOL")
for case in cases[index::parts]:
    if time.monotonic() > until:
        break
    print("case", case, flush=True)
    if way == "dies" and case == "pool-b | shape 0":
        os._exit(7)
    if way == "slow":
        time.sleep(0.6)
    if way == "raises" and case == "conv-a | shape 1":
        print("failed", case + ": CUDARuntimeError: no", flush=True)
        sys.exit(3)
    print("wrong" if way == "wrong" and case == "conv-a | shape 2" else "done", case, flush=True)
"""


@pytest.fixture
def sanitize(script, tmp_path, monkeypatch):
    module = script("sanitize")
    tool, worker = tmp_path / "compute-sanitizer", tmp_path / "worker.py"
    tool.write_text(TOOL.format(python=sys.executable))
    tool.chmod(0o755)
    worker.write_text(WORKER.replace("{{", "{").replace("}}", "}"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(module, "WORKER", worker)
    monkeypatch.setattr(module, "require_gpu", lambda index: Gpu(0, "A GPU", 90))
    monkeypatch.setattr(module, "head", lambda command, gpu: {"command": command})
    monkeypatch.setattr(module, "_GRACE_S", 0.5)
    monkeypatch.setattr(module, "TOOLS", {"memcheck": 1, "racecheck": 1})
    return module


def asked(module, *words):
    return CliRunner().invoke(module.main, ["--jobs", "2", *words])


def test_every_case_runs_under_every_tool(sanitize, tmp_path):
    target = tmp_path / "sanitize.json"
    assert asked(sanitize, "--only", "none").exit_code == 1
    done = asked(sanitize, "--only", "conv,pool-b", "--json", str(target))
    assert done.exit_code == 0 and json.loads(target.read_text())["cases"] == 6
    done = asked(sanitize, "--json", str(target))
    assert done.exit_code == 0, done.output
    found = json.loads(target.read_text())
    assert (found["cases"], found["variants"], found["sanitizer"]) == (9, 3, "2025.3.0.0")
    assert found["planted"]["racecheck"] == {"found": 1, "in_a_clean_kernel": 0}
    assert [(row["tool"], row["cases"], row["errors"]) for row in found["rows"]] == [
        ("memcheck", 9, 0), ("racecheck", 9, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("misses memcheck", "memcheck: expected the planted error in its kernel"),
        ("sees racecheck everywhere", "racecheck: expected no error in a clean kernel"),
        ("crashes in racecheck", "no summary of the tool"),
    ],
)
def test_tool_that_misses_planted_errors_stops_the_run(sanitize, tmp_path, monkeypatch, way, said):
    monkeypatch.setenv("PRETENDED", way)
    done = asked(sanitize, "--json", str(tmp_path / "sanitize.json"))
    assert done.exit_code == 1 and said in done.output
    assert way.startswith("crashes") or not (tmp_path / "sanitize.json").exists()


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("dies", "died: pool-b | shape 0: exit code"),
        ("raises", "died: conv-a | shape 1: CUDARuntimeError: no"),
        ("wrong", "wrong: conv-a | shape 2"),
    ],
)
def test_failures_are_named(sanitize, monkeypatch, way, said):
    monkeypatch.setenv("WORKER", way)
    monkeypatch.setattr(sanitize, "TOOLS", {"memcheck": 1})
    row = sanitize.watch("memcheck", sanitize.listed(), 2, 60.0)
    assert said in row.sentence()
    assert not row.clean and row.cases + len(row.not_reached) >= 8


def test_variant_without_a_case_fails(sanitize, monkeypatch):
    monkeypatch.setenv("WORKER", "slow")
    row = sanitize.watch(None, sanitize.listed(), 1, 0.1)
    assert "plan c" in row.never and not row.clean


REPORT = (
    "========= Error: Race reported between Write access at ptx::copy{copy}_or_zero(float *, "
    "const float *, bool)+0x6580 in async.cuh:55\n"
    "=========     and Read access at Operand::load(const float *, int, float (&)[2])+0x6f0 in "
    "tf32/{file}:80 [512 hazards]\n========="
)


@pytest.mark.parametrize(("copy", "file"), [(4, "wgmma.cu"), (16, "halo.cu")])
def test_only_listed_races_are_excused(sanitize, monkeypatch, copy, file):
    report = REPORT.format(copy=copy, file=file)
    monkeypatch.setenv("PRETENDED", "race")
    monkeypatch.setenv("REPORT", report)
    row = sanitize.watch("racecheck", sanitize.listed(), 2, 60.0)
    assert row.clean and row.allowed == {sanitize.WHY: 2} and "2 reports allowed" in row.sentence()
    assert not sanitize.excused("memcheck", report)
    for change in (
        ("async.cuh", "wgmma.cu"),
        (f"tf32/{file}", f"wgmma/{file}"),
        ("Operand::load", "Operand::keep"),
        ("Read", "Write"),
        (f"copy{copy}_or", "copy8_or"),
    ):
        assert not sanitize.excused("racecheck", report.replace(*change)), change
    monkeypatch.setenv("REPORT", report.replace(*change))
    row = sanitize.watch("racecheck", sanitize.listed(), 2, 60.0)
    assert row.errors == 2 and row.reports and not row.allowed


def test_every_variant_is_a_case(script):
    """With a GPU that runs all, each variant is a case, alone or in a plan; first cases first."""
    cases, gpu = script("sanitize_cases"), Gpu(0, "NVIDIA H200", 90)
    found = cases.in_order([*cases.of_plans(gpu), *cases.of_variants(gpu)])
    named = {case.of for case in found}
    plans = [cases.resolve(name.removeprefix("plan "), "cuda") for name in named if "plan " in name]
    inside = {(s.variant.kind, s.variant.full_name) for plan in plans for s in plan.stages}
    for variant in cases.variants(device="cuda"):
        alone = f"{variant.kind}-{variant.full_name}" in named
        assert alone or (variant.kind, variant.full_name) in inside, variant
    assert {case.of for case in found[: len(named)]} == named
    assert len({str(case) for case in found}) == len(found)
