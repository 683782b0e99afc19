"""`lenetgpu conv`: shapes, suites, refusals, wrong variants, files."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import terminal

from lenetgpu.lab.conv import compared as convolution
from lenetgpu.lab.conv.compared import selected_variants
from lenetgpu.lab.conv.request import ConvRequest, rows_asked
from lenetgpu.measure import conv_bench
from lenetgpu.measure import rounds as comparing
from lenetgpu.measure import torch_peer as conv_peer
from lenetgpu.measure.conv_bench import Case, ConvBench, laid_out
from lenetgpu.measure.rounds import Candidate
from lenetgpu.papers.shapes import SUITES
from lenetgpu.problems import Conv
from lenetgpu.stages import find, variants
from lenetgpu.stages.reference import conv_reference as reference
from lenetgpu.stages.registry import cpu, make_variant

CPU = [v.full_name for v in variants("conv", "cpu")]
run = partial(terminal.run, "conv")


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.setattr(convolution, "peer_version", lambda device: None)


def test_only_accepts_variants_families_and_aliases():
    assert [v.full_name for v in selected_variants("fft.pocketfft, serial", "cpu")] == [
        "serial.loops", "fft.pocketfft",
    ]  # fmt: skip
    assert selected_variants(None, "cuda") == variants("conv", "cuda")
    named = [v.full_name for v in selected_variants("tiled.shared_constant", "cuda")]
    assert named == ["direct.shared_constant"]


def test_nchw_is_used_where_supported():
    problem = Conv(9, 7, 2, 5, 3, 3)
    both = find("conv", "direct.tight", "cuda")
    assert (laid_out(both, problem).reads, laid_out(both, problem).writes) == ("NCHW", "NCHW")
    plain = find("conv", "cublas.im2col", "cuda")
    assert (laid_out(plain, problem).reads, laid_out(plain, problem).writes) == ("NHWC", "NHWC")
    refusing = replace(both, supports=lambda p: "supports nothing")
    assert laid_out(refusing, problem) == "supports nothing"


def test_cpu_run_writes_every_file(tmp_path, without_torch):
    csv, markdown = tmp_path / "out.csv", tmp_path / "out.md"
    result = run(
        "3,12,13,8,3,2,1", "--batch", 3, "--device", "cpu", "--seconds", 0.05, "--explain",
        "--json", "-", "--csv", csv, "--markdown", markdown, code=0,
    )  # fmt: skip
    assert "floor, arithmetic" in result.stderr
    document = json.loads(result.stdout)
    assert (document["schema"], document["command"]) == (1, "conv")
    assert document["baseline"] == "tiled.blocked"
    (case,) = document["cases"]
    assert (case["shape"], case["images"]) == ("3,12,13,8,3,2,1", 3)
    assert [entry["name"] for entry in case["candidates"]] == CPU
    statuses = {entry["name"]: entry["status"] for entry in case["candidates"]}
    assert statuses == {**dict.fromkeys(CPU, "right"), "winograd.blocked": "refused"}  # 3x3
    for entry in case["candidates"]:
        if entry["status"] == "refused":
            continue
        assert entry["checked_images"] == 3
        assert 0 < entry["p05_ms"] <= entry["median_ms"] <= entry["p95_ms"]
        assert entry["speedup"] == pytest.approx(1 / entry["ratio"]["median"])
        assert {"tflops", "gbs", "roofline", "bound", "reads", "writes", "method"} <= set(entry)
        assert entry["name"] in csv.read_text() and entry["name"] in markdown.read_text()
    timed = [entry for entry in case["candidates"] if entry["status"] == "right"]
    assert case["best"] == min(timed, key=lambda entry: entry["median_ms"])["name"]


def test_gpu_variant_is_planned_for_another_gpu_untimed(without_torch, tmp_path):
    asked = ("16,14,14,8,3", "--device", "cpu", "--explain", "--as", "titanx")
    result = run(*asked, "--only", "prefetch.strict", "--json", tmp_path / "planned.json", code=0)
    assert "prefetch.strict, planned for GTX Titan X" in result.output
    assert "at 6.14 TFLOP/s" in result.output and "at 336 GB/s" in result.output
    assert "nothing to run here" in result.output
    (case,) = json.loads((tmp_path / "planned.json").read_text())["cases"]
    assert case["candidates"] == [] and case["rounds"] == 0
    assert run(*asked, "--only", "prefetch.stric").exit_code == 2
    assert run(asked[0], "--device", "cpu", "--only", "prefetch.strict").exit_code == 2
    result = run("1,28,28,8,3", *asked[1:4], "--as", "gtx1080ti", "--seconds", 0.02)
    assert "66,048 multiply-adds" in result.output  # the paper's Table 1
    result = run(*asked[:4], "--only", "best", "--relu")
    assert "best.fp32, planned for H200" in result.output
    assert "supports no ReLU" in result.output


@pytest.mark.parametrize("change", [{"batch": 3}, {"relu": True}])
def test_paper_figures_apply_only_to_its_own_convolutions(change):
    suite, rows = rows_asked(ConvRequest(suite="convnet2", batch=128))
    assert suite == SUITES["convnet2"] and rows == [*suite.rows] and suite.says
    suite, rows = rows_asked(ConvRequest(suite="convnet2", **change))
    assert not suite.says and suite.claim is None and suite.rows == tuple(rows)
    assert not any(row.paper for row in rows)


def test_suite_ends_with_a_summary(without_torch):
    result = run("--suite", "lenet", "--device", "cpu", "--batch", 2, "--seconds", 0.02,
                 "--only", "tiled,unrolled", "--json", "-", code=0)  # fmt: skip
    document = json.loads(result.stdout)
    assert [(case["label"], case["images"]) for case in document["cases"]] == [
        ("conv1, 2 images", 2), ("conv2, 2 images", 2),
    ]  # fmt: skip
    rows = {row["name"]: row for row in document["summary"]}
    assert rows["tiled.blocked"]["geomean"] == 1
    row = rows["unrolled.blas"]
    assert row["shapes"] == "2 of 2" and row["least"] <= row["geomean"] <= row["most"]


def broken(run_):
    return make_variant(
        run_, kind="conv", family="broken", reads="NHWC", writes="NHWC", needs=cpu()
    )


def test_wrong_refused_and_failing_variants_are_reported(monkeypatch, without_torch):
    right = find("conv", "tiled", "cpu")

    def swaps_images(x, w, y, problem):
        """Write each output to another image."""
        y[:] = reference(x, w, problem)[::-1]

    def fails(x, w, y, problem):
        """Raise RuntimeError."""
        raise RuntimeError("an illegal address")

    def never(x, w, y, problem):
        """Support nothing."""

    refusing = replace(broken(never), supports=lambda problem: "supports odd days only")
    listed = [right, broken(swaps_images), broken(fails), refusing]
    monkeypatch.setattr(convolution, "variants", lambda kind, device: listed)
    result = run(
        "2,6,7,3,3", "--batch", 2, "--device", "cpu", "--seconds", 0.02, "--json", "-", code=1
    )
    entries = {e["name"]: e for e in json.loads(result.stdout)["cases"][0]["candidates"]}
    status = {name.split(".")[1]: entry["status"] for name, entry in entries.items()}
    assert status == {
        "blocked": "right", "swaps_images": "wrong", "fails": "failed", "never": "refused",
    }  # fmt: skip
    assert all("median_ms" not in e for e in entries.values() if e["status"] != "right")
    assert entries["broken.never"]["note"] == "supports odd days only"
    assert "an illegal address" in entries["broken.fails"]["note"]
    assert "WRONG: 2,6,7,3,3,1,0: broken.swaps_images" in result.stderr


def test_slow_variant_is_timed_once(monkeypatch):
    case = Case(Conv(6, 6, 1, 2, 3, 3), 2, gpu=False)
    serial = find("conv", "serial", "cpu")
    candidates = [
        Candidate("slow", lambda: ConvBench(serial, case.problem, case, 1e-9)),
        Candidate("fast", lambda: ConvBench(serial, case.problem, case, 1.0)),
    ]
    done = comparing.compare("x", candidates, "fast", comparing.Effort(0.05))
    assert len(done.candidates[0].samples) == 1
    assert len(done.candidates[1].samples) >= comparing.LEAST_ROUNDS


def test_variant_too_slow_on_cpu_is_skipped(monkeypatch):
    monkeypatch.setattr(conv_bench, "_LONG_FLOP", 1)
    monkeypatch.setattr(conv_bench, "_PATIENCE_S", 0.0)
    case = Case(Conv(64, 64, 4, 8, 3, 3, stride=2, pad=1), 1, gpu=False)
    serial = find("conv", "serial", "cpu")
    candidate = Candidate("serial", lambda: ConvBench(serial, case.problem, case, 1.0))
    done = comparing.compare("x", [candidate], "serial", comparing.Effort(0.05))
    assert done.candidates[0].status == "skipped"
    assert "s a call, by its rate on a few rows" in done.candidates[0].note


@pytest.mark.peers
def test_pytorch_is_compared(tmp_path):
    result = run("3,9,10,4,3,2,1", "--device", "cpu", "--seconds", 0.05, "--only", "serial",
                 "--json", "-", code=0)  # fmt: skip
    document = json.loads(result.stdout)
    assert document["baseline"] == conv_peer.NAMES["cpu"]
    assert document["peer"].startswith("PyTorch")
    peer = document["cases"][0]["candidates"][-1]
    assert (peer["name"], peer["status"], peer["verdict"]) == ("torch cpu", "right", "baseline")
    assert peer["note"] in ("contiguous", "channels_last")


@pytest.mark.gpu
@pytest.mark.peers
def test_pytorch_row_names_its_gpu_kernels():
    case = Case(Conv(28, 28, 32, 32, 3, 3), 8, gpu=True)
    bench = conv_peer.TorchBench(case.problem, case, 0.1)
    assert bench.check().verdict.passed
    assert "kernels not named" not in bench.note and len(bench.note.split(", ")) >= 2


def test_charts_of_a_shape_and_a_suite(tmp_path, without_torch):
    pytest.importorskip("vl_convert")
    for arguments in (("1,8,8,4,3",), ("--suite", "lenet", "--batch", 1)):
        target = tmp_path / f"{len(arguments)}.png"
        run(*arguments, "--device", "cpu", "--seconds", 0.02, "--only", "tiled,unrolled",
            "--plot", target, code=0)  # fmt: skip
        assert target.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize(
    "shape", ["3,13,11,7,3,2,1", "1,28,28,32,5", "g2ic4oc6_ih9oh5kh3sh2dh1ph2"]
)
def test_small_shape_on_a_gpu(shape):
    result = run(shape, "--batch", 3, "--device", "cuda", "--seconds", 0.02, "--watch", 0.05,
                 "--explain", "--json", "-", code=0)  # fmt: skip
    document = json.loads(result.stdout)
    (case,) = document["cases"]
    status = {entry["name"]: entry["status"] for entry in case["candidates"]}
    assert set(status.values()) <= {"right", "refused"}
    timed = [entry for entry in case["candidates"] if entry["status"] == "right"]
    assert all(math.isfinite(entry["median_ms"]) for entry in timed)
    assert any(entry["method"].startswith("graph") for entry in timed)
    assert all(entry["registers"] for entry in timed if entry["name"].startswith("direct"))


@pytest.mark.parametrize("stops", [KeyboardInterrupt, MemoryError])
def test_finished_shapes_are_kept_after_an_error(stops, monkeypatch, tmp_path, without_torch):
    made = []

    def case(*arguments):
        made.append(arguments)
        if len(made) == 2:
            raise stops("enough")
        return Case(*arguments)

    monkeypatch.setattr(convolution, "Case", case)
    target = tmp_path / "kept.json"
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{channels},8,8,4,3\n" for channels in (1, 2, 3, 4)))
    result = run("--from", lines, "--device", "cpu", "--seconds", 0.02, "--only", "tiled",
                 "--json", target)  # fmt: skip
    document = json.loads(target.read_text())
    interrupted = stops is KeyboardInterrupt
    assert result.exit_code == (130 if interrupted else 0)
    assert document["interrupted"] == interrupted
    assert len(document["cases"]) == (1 if interrupted else 3)
