"""scripts/sanitize.py: planted errors, failures, races that are excused, and its cases.

On a GPU, run `make sanitize`.
"""

import click
import pytest

from lenetgpu.gpu.device import Gpu

SUMMARY = "========= ERROR SUMMARY: {} errors"


@pytest.fixture
def sanitize(script):
    return script("sanitize")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (lambda tool, planted: f"launched\n{SUMMARY.format(0)}", "the planted error in its kernel"),
        (lambda tool, planted: f"launched\n{SUMMARY.format(1)}", "no error in a clean kernel"),
        (lambda tool, planted: SUMMARY.format(int(tool == planted)), "its summary of a kernel"),
        (lambda tool, planted: "launched\nno device", "found: no device"),
        (lambda tool, planted: f"launched\n{SUMMARY.format(int(tool == planted))}", None),
    ],
)
def test_tool_that_misses_planted_errors_stops_the_run(sanitize, monkeypatch, log, said):
    def logged(words, seconds):
        tool = words[words.index("--tool") + 1] if "--tool" in words else None
        return log(tool, words[-1]), 0

    monkeypatch.setattr(sanitize, "logged", logged)
    if said is None:
        assert sanitize.prove(2)["racecheck"] == {"found": 1, "in_a_clean_kernel": 0}
        return
    with pytest.raises(click.ClickException, match=f"expected {said}|{said}"):
        sanitize.prove(2)


CASES = ["conv-a | shape 0", "pool-b | shape 0"]
ENDED = "".join(f"case {case}\ndone {case}\n" for case in CASES)


@pytest.mark.parametrize(
    ("log", "code", "said"),
    [
        (ENDED.removesuffix("done pool-b | shape 0\n"), 7, "died: pool-b | shape 0: exit code 7"),
        (ENDED.replace("done pool-b | shape 0", "failed pool-b | shape 0: CUDARuntimeError: no"), 3,
         "died: pool-b | shape 0: CUDARuntimeError: no"),
        (ENDED.replace("done conv", "wrong conv"), 0, "wrong: conv-a | shape 0"),
        (ENDED.partition("case pool")[0], None, "never: pool-b; 1 cases not reached"),
        (ENDED + SUMMARY.format(2), 0, "2 errors"),
    ],
    ids=["died", "raised", "wrong", "late", "found"],
)  # fmt: skip
def test_failures_are_named(sanitize, monkeypatch, log, code, said):
    monkeypatch.setattr(sanitize, "logged", lambda words, seconds: (log, code))
    row = sanitize.watch("memcheck", CASES, 1, 60.0)
    assert said in row.sentence() and not row.clean
    good = f"{ENDED}{SUMMARY.format(0)}"
    monkeypatch.setattr(sanitize, "logged", lambda words, seconds: (good, 0))
    row = sanitize.watch("memcheck", CASES, 1, 60.0)
    assert row.clean and row.cases == 2


REPORT = (
    "========= Error: Race reported between Write access at ptx::copy{copy}_or_zero(float *, "
    "const float *, bool)+0x6580 in async.cuh:55\n"
    "=========     and Read access at Operand::load(const float *, int, float (&)[2])+0x6f0 in "
    "tf32/{file}:80 [512 hazards]\n========="
)


@pytest.mark.parametrize(("copy", "file"), [(4, "wgmma.cu"), (16, "halo.cu")])
def test_only_listed_races_are_excused(sanitize, copy, file):
    report, row = REPORT.format(copy=copy, file=file), sanitize.Row("racecheck")
    summary = "\n========= RACECHECK SUMMARY: 1 hazards displayed (1 errors, 0 warnings)"
    sanitize.judged(row, report + summary, 0)
    assert row.clean and row.allowed == {sanitize.WHY: 1} and "1 reports allowed" in row.sentence()
    assert not sanitize.excused("memcheck", report)
    for change in (
        ("async.cuh", "wgmma.cu"),
        (f"tf32/{file}", f"wgmma/{file}"),
        ("Operand::load", "Operand::keep"),
        ("Read", "Write"),
        (f"copy{copy}_or", "copy8_or"),
    ):
        sanitize.judged(row, report.replace(*change) + summary, 0)
        assert not row.clean and row.errors == len(row.reports), change
        row.errors, row.reports = 0, []


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
