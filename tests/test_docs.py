"""What the repository says of itself is generated, and current."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from conftest import ROOT

from lenetgpu.check.warmup import network_problems
from lenetgpu.gpu.nvrtc import source_hash
from lenetgpu.papers.course import FIGURES, LADDERS
from lenetgpu.papers.shapes import SUITES
from lenetgpu.stages import variants
from lenetgpu.stages.matrix import cells

PAGES = [
    path
    for folder in (ROOT, ROOT / "docs", ROOT / "data", ROOT / "weights")
    for path in sorted(folder.glob("*.md"))
]


@pytest.fixture(autouse=True)
def scripts_import_each_other(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a data class asks for its module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def test_the_generated_pages_are_current():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "update_docs.py", "--check"])
    assert done.returncode == 0, "run scripts/update_docs.py"


def test_the_picture_is_current():
    """What it shows exists and is drawn as today; what it does not show yet is a warning only."""
    drawing = script("draw_pipeline")
    picture = (ROOT / "docs" / "pipeline.svg").read_text()
    shown, registered = drawing.shown_in(picture), drawing.registered()
    gone = [name for name in shown if name not in registered]
    assert shown and not gone, "run scripts/draw_pipeline.py"
    assert picture == drawing.draw(shown), "run scripts/draw_pipeline.py"
    new = ", ".join(name for name in registered if name not in shown)
    if new:
        warnings.warn(f"docs/pipeline.svg lacks {new}: run scripts/draw_pipeline.py", stacklevel=1)


MEASURED = ROOT / "docs" / "measured"
COURSE_MS = 270
HOST = ("*/end_to_end.json", "*/one.json", "*/cold.json")


def measured(pattern):
    return pytest.mark.parametrize(
        "path", sorted(MEASURED.glob(pattern)), ids=lambda p: str(p.relative_to(MEASURED))
    )


def read(path):
    return json.loads(Path(path).read_text())


def test_every_measured_file_is_of_a_kind_that_is_tested():
    folders = ("plans", "cells", "conv", "again", "ablation")
    names = ("peers", "course", "infer", "instrument*", "streams", "weights", "counters", "shares")
    names += ("sanitize", "scale")
    kinds = (*(f"*/{folder}/*.json" for folder in folders), *(f"*/{n}.json" for n in names), *HOST)
    known = {path for kind in kinds for path in MEASURED.glob(kind)}
    known |= {*MEASURED.glob("*/run.json")}
    assert set(MEASURED.rglob("*.json")) == known
    assert known


@measured("*/streams.json")
def test_streams_were_swept_whole(path):
    """Every plan and both types by every schedule, and what takes little beside what is bare."""
    document, sweep = read(path), script("streams_sweep")
    found = {(s["plan"], s["dtype"], s["images"]): s["rows"] for s in document["sweeps"]}
    many = {(plan, "uint8", sweep.MANY) for plan in sweep.PLANS[:2]}
    assert set(found) == many | {(p, t, sweep.IMAGES) for p in sweep.PLANS for t in sweep.TYPES}
    assert all(row["samples"] >= 5 for rows in found.values() for row in rows)
    for plan, dtype, images in found:
        by = {row["way"]: row["median_ms"] for row in found[plan, dtype, images]}
        floor = max(by["bare copy"], by.get("kernels", 0.0))
        assert 0.9 * floor < by["auto"] < 1.5 * floor, (plan, dtype, images)


@measured("*/scale.json")
def test_jobs_were_timed_with_and_without_workers(path):
    """Each shard's size by the command alone and by workers, medians of their samples."""
    document = read(path)
    assert document["date"] and document["commit"] and "+" not in document["commit"]
    cells = {(row["shard"], row["workers"]): row for row in document["rows"]}
    shards = {shard for shard, _ in cells}
    assert {(shard, count) for shard in shards for count in (0, 1, 2)} <= set(cells)
    for row in document["rows"]:
        assert len(row["samples"]) == document["rounds"] >= 3
        assert row["images_per_second"] == sorted(row["samples"])[len(row["samples"]) // 2]
    assert {entry["shard"] for entry in document["predicted"]} == shards


@measured("*/weights.json")
def test_every_plan_was_right_or_refused_with_any_weights(path):
    document = read(path)
    assert document["images"] >= 10_000
    for row in document["rows"]:
        assert row["plans"]
        for entry in row["plans"].values():
            assert entry.get("right") or "float32's" in row["weights"], (row["weights"], entry)
            assert entry.get("right") or entry["refused"].startswith("weights times 1e")


@measured("*/instrument*.json")
def test_the_instrument_held_where_it_was_pointed_at_itself(path):
    """What docs/measured.md says of it, counted again from the runs."""
    document = read(path)
    counts = script("instrument").counts(document["runs"])
    recorded = document["counts"]
    assert counts == {key: recorded[key] for key in counts}
    assert counts["runs"] >= 40
    assert counts["same_called_different"] <= 2 and counts["control_called_different"] <= 2
    assert counts["second_run_inside"] >= 0.9 * counts["pairs"]
    assert counts["lowest_end_of_an_interval"] > 0
    assert counts["longest_run_seconds"] <= 20
    if not document["busy_processes"]:
        assert counts["slow_down_found"] >= 36


@measured("*/sanitize.json")
def test_sanitizers_found_what_was_planted_and_nothing_else(path):
    document, sanitize = read(path), script("sanitize")
    assert document["date"] and document["device"]["kind"] == "cuda"
    assert (
        set(document["planted"]) == {row["tool"] for row in document["rows"]} == {*sanitize.TOOLS}
    )
    assert all(entry["found"] > 0 for entry in document["planted"].values())
    assert all(entry["in_a_clean_kernel"] == 0 for entry in document["planted"].values())
    known = {entry.why for entry in sanitize.ALLOWED}
    for row in document["rows"]:
        assert not (row["errors"] or row["wrong"] or row["died"] or row["never"]), row["tool"]
        assert row["cases"] >= document["variants"] and set(row["allowed"]) <= known
        assert row["cases"] + len(row["not_reached"]) == document["cases"]


@measured("*/**/*.json")
def test_no_measured_file_is_of_a_quick_run(path):
    assert not read(path).get("quick"), "take it again without --quick"


@measured("*/course.json")
def test_measured_suites_are_right_and_dated(path):
    document = read(path)
    assert document["date"]
    assert document["device"]["kind"] == "cuda"
    assert {row["status"] for row in document["rows"]} == {"right"}


@measured("*/conv/*.json")
def test_measured_convolutions_are_right_dated_and_whole(path):
    document = read(path)
    assert document["date"]
    assert document["device"]["kind"] == "cuda"
    assert not document["interrupted"]
    assert document["suite"] == path.stem
    labels = [case["label"] for case in document["cases"]]
    assert labels == [shape.label for shape in SUITES[path.stem].shapes]
    for case in document["cases"]:
        status = {entry["status"] for entry in case["candidates"]}
        assert status <= {"right", "refused", "skipped"}


@measured("*/again/*.json")
def test_convolutions_measured_again_are_right_and_dated(path):
    document = read(path)
    assert document["date"] and document["device"]["kind"] == "cuda"
    assert not document["interrupted"] and document["cases"]
    entries = [entry for case in document["cases"] for entry in case["candidates"]]
    assert {entry["status"] for entry in entries} <= {"right", "refused", "skipped"}


@measured("*/plans/*.json")
def test_measured_plans_are_right_and_dated(path):
    document = read(path)
    if document["precision"] == "fp32":
        assert document["correct"] == 8_722
    else:
        assert abs(document["correct"] - 8_722) <= 5
    assert document["date"]
    assert document["device"]["name"]
    assert document["timing_ms"]["compute"]["samples"]
    if document["device"]["kind"] == "cuda":
        assert document["timing_ms"]["compute"]["median"] < COURSE_MS


@measured("*/peers.json")
def test_measured_peers_are_right_dated_and_sampled_enough(path):
    document = read(path)
    assert document["date"]
    for row in document["rows"]:
        assert row["flips"] <= 20
        assert len(row["samples_ms"]) >= 7
    ours = [row for row in document["rows"] if row["maker"] == "lenetgpu"]
    assert ours and all(row["times_faster"] > 0 for row in ours)


@pytest.mark.parametrize("path", [path for kind in HOST for path in MEASURED.glob(kind)])
def test_measured_hosts_are_right_dated_and_sampled_enough(path):
    document = read(path)
    rows = [*document["rows"], *document.get("many", {"rows": ()})["rows"]]
    assert document["date"] and {"lenetgpu", "torch"} <= {row["maker"] for row in rows}
    for row in rows:
        assert row["flips"] <= 20 * row.get("judged", 10_000) / 10_000
        assert len(row["samples_ms"]) >= 7
        assert row.get("calls", 2_000) >= 2_000


def in_a_tree(tmp_path):
    """The scripts, pages and measured files in a folder of their own: (folder, run a script)."""
    for name in ("scripts", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "README.md", tmp_path)

    def run(*arguments):
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    return tmp_path, run


def test_a_page_says_which_kernels_changed_since_its_figures(tmp_path):
    """Kernels are hashed from the package; a file that ran another makes its page stale."""
    tree, run = in_a_tree(tmp_path)
    update = tree / "scripts" / "update_docs.py"
    peers = tree / "docs" / "measured" / "nvidia-h200" / "peers.json"
    page = tree / "README.md"
    source = "lenetgpu/stages/fused/wgmma/int8_features.cu"
    document = read(peers)
    document["kernels"] = script("measured").kernels_of(document)
    assert document["kernels"][source] == source_hash(ROOT / source)
    peers.write_text(json.dumps(document))
    assert run(update).returncode == 0
    assert "kernels as they are in the sources" in page.read_text()
    assert run(update, "--check").returncode == 0

    document["kernels"][source] = "0" * 64
    peers.write_text(json.dumps(document))
    stale = run(update, "--check")
    assert stale.returncode == 1
    assert "README.md is stale" in stale.stdout
    assert run(update).returncode == 0
    assert "since then changed: fused/wgmma/int8_features.cu" in page.read_text()
    assert run(update, "--check").returncode == 0

    fewer = {name: key for name, key in document["kernels"].items() if name != source}
    peers.write_text(json.dumps(document | {"kernels": fewer}))
    assert run(update).returncode == 0
    assert "run today and not then: fused/wgmma/int8_features.cu." in page.read_text()
    peers.write_text(json.dumps(document))
    assert run(update).returncode == 0

    cut = page.read_text().replace("since then changed: fused/wgmma/int8_features.cu", "")
    page.write_text(cut)
    assert run(update, "--check").returncode == 1


def test_a_cells_time_is_of_its_own_run_or_of_the_courses(tmp_path):
    """A comparison of a stage fills its row on that device's table, with whose times they are."""
    tree, run = in_a_tree(tmp_path)
    update, page = tree / "scripts" / "update_docs.py", tree / "docs" / "matrix.md"
    taken = [("unrolled.windows", "right", 1.5), ("tiled.shared", "right", 0.25),
             ("cublas.sgemm", "wrong", 0.125)]  # fmt: skip
    document = {
        "command": "compare", "date": "2026-11-30", "what": "pool1", "commit": "ab12",
        "device": {"kind": "cuda", "name": "NVIDIA H200", "compute_capability": "9.0"},
        "candidates": [{"name": name, "status": status, "median_ms": ms, "samples_ms": [ms] * 9}
                       for name, status, ms in taken],
    }  # fmt: skip
    document["kernels"] = script("measured").kernels_of(document)
    assert {Path(name).stem for name in document["kernels"]} >= {"unrolled", "tiled"}
    folder = tree / "docs" / "measured" / "nvidia-h200" / "cells"
    shutil.rmtree(folder)
    assert run(update).returncode == 0
    before = page.read_text()
    rows = read(MEASURED / "nvidia-h200" / "course.json")["rows"]
    (ms,) = {
        r["median_ms"] for r in rows if (r["stage"], r["variant"]) == ("pool1", "tiled.shared")
    }
    assert "Not measured cell by cell" in before and f"| `tiled.shared` {ms:.3f} (2) |" in before
    folder.mkdir()
    (folder / "pool1.json").write_text(json.dumps(document))
    assert run(update).returncode == 0
    (row, _) = [line for line in page.read_text().splitlines() if line.startswith("| pool1 |")]
    assert row.split(" | ")[2:5] == [
        "`tiled.shared` 0.250", "`unrolled.windows` 1.500", "`cublas.sgemm`"
    ]  # fmt: skip
    assert "NVIDIA H200, 2026-11-30, commit ab12; ms for 10,000 images" in page.read_text()


@measured("*/ablation/*.json")
def test_the_papers_kernels_were_timed_on_every_shape(path):
    """All that does not refuse a shape is right on it, and timed beside the peer."""
    document, suite = read(path), SUITES[path.stem]
    assert [case["label"] for case in document["cases"]] == [s.label for s in suite.shapes]
    for case in document["cases"]:
        status = {entry["name"]: entry["status"] for entry in case["candidates"]}
        (paper,) = suite.literal
        assert status[document["reference"]] == status[paper] == "right"
        assert set(status.values()) <= {"right", "refused"}
        assert case["rounds"] >= 5


@measured("*/counters.json")
def test_counters_are_measured_and_of_every_rung(path):
    document = read(path)
    found = {(row["stage"], row["variant"]): row for row in document["rows"]}
    assert document["source"] == "ncu" and not any(row["error"] for row in found.values())
    rungs = {(stage, name) for stage, steps in LADDERS for name, _ in steps if "." in name}
    assert rungs <= set(found)
    assert all(0 < row["occupancy"] <= 1 for row in found.values())


@measured("*/shares.json")
def test_parts_are_of_right_kernels_and_make_a_whole(path):
    rows = [row for shape in read(path)["cases"] for row in shape["kernels"]]
    timed = [row for row in rows if row["status"] != "refused"]
    assert len(timed) >= 10 and {row["status"] for row in timed} == {"right"}
    assert all(abs(sum(row["shares"].values()) - 1) < 1e-6 for row in timed)


@measured("*/cells/*.json")
def test_measured_cells_are_right_and_whole(path):
    document = read(path)
    own = {c.variant.full_name for c in cells(path.stem) if c.variant and not c.copies
           and c.device == document["device"]["kind"]}  # fmt: skip
    status = {entry["name"]: entry["status"] for entry in document["candidates"]}
    assert document["what"] == path.stem and document["images"] == 10_000
    assert {status[name] for name in own} == {"right"}


def test_a_quoted_figure_is_what_the_files_say(tmp_path):
    tree, run = in_a_tree(tmp_path)
    page = tree / "docs" / "measured.md"
    text = page.read_text()
    assert "-->270 ms<!-- end -->" in text
    page.write_text(text.replace("-->270 ms<!-- end -->", "-->207 ms<!-- end -->"))
    assert run(tree / "scripts" / "update_docs.py", "--check").returncode == 1


# a glossary defines percentages and quotes the papers
DEFINES = {"words.md"}


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name
)
def test_no_figure_stands_without_a_file_behind_it(page):
    left = script("quoted").unbacked(page.read_text())
    if page.name in DEFINES:
        papers = {f"{figure.milliseconds:g} ms" for figure in FIGURES}
        left = [figure for figure in left if not figure.endswith("%") and figure not in papers]
    assert left == [], "generate it, quote it (scripts/quoted.py), or say that no file records it"


EXCUSE = (
    "Figures in this section were seen during development on an NVIDIA H200, 2026-11-20; no file "
    "records them."
)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("# A\n\nIt takes 4.5 ms.\n", ["4.5 ms"]),
        ("It is 12x as fast, 3,412 GB/s, 96 %, 1.5x,\n20,799 images/s and 7 us.", None),
        ("a 4x4 tile, 5x5 filters, m64n144, F(2x2,5x5), 16 x 4 threads, sm_90, 10,000 images", []),
        (f"# A\n\n## B\n\n{EXCUSE}\n\n### C\n\n5 ms\n", []),
        (f"# A\n\n## B\n\n{EXCUSE}\n\n## C\n\n5 ms\n", ["5 ms"]),
        (f"# A\n\n{EXCUSE.replace('in this section', 'on this page')}\n\n## C\n\n5 ms\n", []),
        (f"# A\n\n{EXCUSE.replace('; no file records them', '')}\n\n5 ms\n", ["5 ms"]),
        ("# A\n\nFigures in this section are right.\n\n5 ms\n", ["5 ms"]),
        ("<!-- begin:x -->\n5 ms\n<!-- end:x -->\n6 ms", ["6 ms"]),
        ("<!-- figure:x -->5 ms<!-- end --> and 6 ms", ["6 ms"]),
        ("```\nelapsed 5 ms\n```\n", ["5 ms"]),
        ("the 95 % confidence interval", []),
    ],
)
def test_what_counts_as_a_figure(text, left):
    found = script("quoted").unbacked(text)
    if left is None:
        left = ["12x", "3,412 GB/s", "96 %", "1.5x", "20,799 images/s", "7 us"]
    assert found == left


@pytest.mark.parametrize("stage", ["conv1", "conv2"])
def test_the_ladder_has_every_gpu_convolution_once_and_climbs(stage):
    text = (ROOT / "docs" / "ladder.md").read_text()
    part = text.split(f"<!-- begin:ladder-{stage} -->")[1].split(f"<!-- end:ladder-{stage} -->")[0]
    rows = re.findall(r"^\| (\d+) \| \[`([\w.]+)`\].* \| ([\d.,]+) \| \w+ \|", part, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    times = [float(took.replace(",", "")) for _, _, took in rows]
    assert times == sorted(times, reverse=True)
    without = re.findall(r"^- \[`([\w.]+)`\]", part, re.MULTILINE)
    listed = [name for _, name, _ in rows] + without
    registered = [v.full_name for v in variants("conv", "cuda")]
    assert len(set(listed)) == len(listed)
    assert set(listed) <= set(registered), "run scripts/update_docs.py"
    new = ", ".join(name for name in registered if name not in listed)
    if new:
        warnings.warn(f"docs/ladder.md lacks {new}: run scripts/update_docs.py", stacklevel=1)


def test_every_rung_of_the_ladder_links_to_its_kernel():
    """The launcher defines the variant, and the kernel is one that it launches on this network."""
    page = ROOT / "docs" / "ladder.md"
    row = r"^(?:\| \d+ \| |- )\[`([\w.]+)`\]\(([^)]+)\)(?: \[\.cu\]\(([^)]+)\))?"
    rows = set(re.findall(row, page.read_text(), re.MULTILINE))
    known = {v.full_name: v for v in variants("conv")}
    assert {name for name, _, _ in rows} >= {v.full_name for v in variants("conv", "cpu")}
    without = set()
    for name, launcher, kernel in rows:
        variant, source = known[name], page.parent / launcher
        names = {variant.name, inspect.unwrap(variant.run).__name__, variant.run.__name__}
        assert any(re.search(rf"\b{word}\b", source.read_text()) for word in names), name
        if not kernel:
            without.add(name)
            continue
        launched = {k.source for p in network_problems(variant) for k in variant.kernels(p, 100)}
        assert (page.parent / kernel).resolve() in launched, name
    assert without == {v.full_name for v in known.values() if v.needs.device == "cpu"} | CHOOSES


CHOOSES = {"best.fp32"}  # launches one of the others


def fragments(path):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    words = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, fragment = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists() or (fragment and fragment not in fragments(there)):
            dead.append(target)
    assert not dead


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    for page in sorted((ROOT / "docs").glob("*.md")):
        assert page.name == "README.md" or f"({page.name})" in index
