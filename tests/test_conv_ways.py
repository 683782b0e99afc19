"""Inputs of `lenetgpu conv`: lines of benchdnn and MIOpenDriver, files of them, networks."""

import json
import shlex
from functools import partial
from pathlib import Path

import pytest
import terminal
from hypothesis import given, settings
from hypothesis import strategies as st

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.files.convs import benchdnn, miopen
from lenetgpu.files.convs.described import Given, as_line, convolution, require_countable
from lenetgpu.lab.conv import compared, request
from lenetgpu.lab.conv.document import shape_text
from lenetgpu.papers.shapes import SUITES
from lenetgpu.problems import Conv, outputs

MIOPEN = "./bin/MIOpenDriver conv"


run = partial(terminal.run, "conv")


@pytest.fixture(autouse=True)
def without_torch(monkeypatch):
    monkeypatch.setattr(compared, "peer_version", lambda device: None)


# batch, C, H, W, M, R, S, stride, pad
@pytest.mark.parametrize(
    ("line", "images", "conv"),
    [
        ('ic64ih56oc64oh56kh3ph1n"resnet:3x3"', 2, Conv(56, 56, 64, 64, 3, 3, 1, 1)),

        ("./benchdnn --conv --mb=4 --dir=FWD_D --dt=f32 -v1 mb9ic8ih8oc4kh1dh5", 4,
         Conv(8, 8, 8, 4, 1, 1)),
        (MIOPEN, 100, Conv(32, 32, 3, 32, 3, 3)),
        (f"{MIOPEN} -n 64 -c 64 -H 56 -W 57 -k 65 -y 3 -x 2 -p 1 -q 1 -u 2 -v 2 -l 1 -j 1 -g 1 -F 1"
         " -m conv -t 1", 64, Conv(56, 57, 64, 65, 3, 2, 2, 1)),
        ("MIOpen(HIP): Command ./bin/MIOpenDriver conv --in_channels 7 --pad_h 4 --pad_mode valid",
         100, Conv(32, 32, 7, 32, 3, 3)),
        ("ic8ih8oc8kh3ph1pw0", 2, Conv(8, 8, 8, 8, 3, 3, 1, 1)),
        ("mb1_g16ic16oc16_ih15oh7kh6sh2ph3_iw10ow10kw3", 1,
         Conv(15, 10, 16, 16, 6, 3, strides=(2, 1), pads=(3, 1, 0, 1), groups=16)),
        ("ic64oc112mb1ih25iw5oh26ow1kh2kw3sw2dw1ph2", 1,
         Conv(25, 5, 64, 112, 2, 3, pads=(2, 0, 0, 0), dilation=(1, 2))),
        ("ic8_id0ih8_oc8_kh3_sd1_pd0ph1_dd0_nab1", 2, Conv(8, 8, 8, 8, 3, 3, 1, 1)),
        ("bin/MIOpenDriver.exe conv -n 3", 3, Conv(32, 32, 3, 32, 3, 3)),
        (f"{MIOPEN} -l 2 -j 3 -u 2", 100,
         Conv(32, 32, 3, 32, 3, 3, strides=(2, 1), dilation=(2, 3))),
    ],
)  # fmt: skip
def test_benchdnn_and_miopen_lines_are_parsed(line, images, conv):
    shape = request.shape_of(line)
    assert (shape.batch, shape.problem) == (images, conv)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("ic8id8oc8kd3", "3 spatial dimensions"),
        ("--deconv ic8ih8oc8kh3oh10", "transposed"),
        ("--dir=BWD_W ic8ih8oc8kh3", "direction BWD_W"),
        ("--dt=u8:s8:f32 g2ic8ih8oc8kh3", "u8:s8:f32 operands"),
        (f"{MIOPEN} -F 4", "backward only (-F 4)"),
        (f"{MIOPEN} -p 1 -r 2", "padding of 2"),
        (f"{MIOPEN} -z same", "padding mode same"),
        ("MIOpenDriver convfp8", "fp8 operands"),
        ("--attr-post-ops=sum+relu ic8ih8oc8kh3", "post-operations sum+relu"),
    ],
)
def test_unsupported_lines_give_the_reason(line, why):
    terminal.refused(run("--", line), f"expected a supported convolution, found {why}")


@pytest.mark.parametrize(
    ("line", "epilogue", "said"),
    [
        ("ic8ih8oc8kh3", False, request.ALONE),
        ("ic8ih8oc8kh3", True, request.FUSED),
        ("--attr-post-ops=relu ic8ih8oc8kh3", False, request.AS_LISTED),
    ],
)
def test_notes_list_epilogues_of_a_file(tmp_path, line, epilogue, said):
    path = tmp_path / "lines"
    path.write_text(f"ic3ih8oc8kh3\n{line}\n")
    assert request.rows_asked(request.ConvRequest(lines=path, epilogue=epilogue))[0].notes == (
        said,
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("g3ic8ih8oc9kh3", "expected groups that divide C, found 3 of 8"),
        ("ic8ih8oc8kh9", "within the padded map of 8x8, found 9x9"),
        ("ic8ih8oc8kh3oh2", "expected OH of at least 6, found 2"),
        ("ic8oc8kh3", "expected ih, found none"),
        ("ic8ih8iw9oc8kh3", "expected kw, found none"),
        ("ic8ih8oc8kh3ic8", "found ic twice"),
        ("ic8ih8oc8kh3xy4", "once, found xy"),
        ("ic8ih8oc8kh", "expected an entry and its whole number, found 'kh'"),
        ("ic8ih8oc8kh3 ic8ih8oc8kh3", "expected one descriptor like ic3ih8oc4kh3, found 2"),
        ("--batch=other ic8ih8oc8kh3", "found --batch=other"),
        ("mb9000ic800ih800oc8kh3", "fewer than 2^31 values in the input, found 4,608,000,000"),
        (f"{MIOPEN} -n 1e3", "expected a whole number for -n, found '1e3'"),
        (f"{MIOPEN} -n", "expected a value after -n, found none"),
        (f"{MIOPEN} -n 3 -n 4", "found -n twice"),
        (f"{MIOPEN} -Q 3", "expected a flag of its convolutions, found -Q"),
        ("MIOpenDriver", "after its name, found nothing"),
    ],
)
def test_invalid_lines_are_refused_in_one_sentence(line, words):
    terminal.refused(run("--", line), words)


@pytest.mark.parametrize(
    ("line", "larger", "name"),
    [
        ("1,32766,65533,1,3,1,1", "1,32766,65534,1,3,1,1", "input"),
        ("32767,16,16,256,16", "32768,16,16,256,16", "filters"),
        ("1,256,256,32767,1", "1,256,256,32768,1", "output"),
    ],
)
def test_sizes_beyond_32bit_offsets_are_refused(line, larger, name):
    shape = request.shape_of(line)
    require_countable(shape.problem, 1, "it")
    words = f"batch 1: expected fewer than 2^31 values in the {name}, found"
    terminal.refused(run(larger, "--list"), words)


PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=60, deadline=None)
@given(
    numbers=st.tuples(*[st.integers(1, 9)] * 7), stride=PAIRS, dilation=PAIRS,
    pad=st.tuples(st.integers(0, 3), st.integers(0, 3)), groups=st.integers(1, 3),
    after=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)  # fmt: skip
def test_convolutions_round_trip_through_their_text(numbers, stride, dilation, pad, groups, after):
    n, h, w, c, m, r, s = numbers
    spans = [(k - 1) * far + 1 for k, far in zip((r, s), dilation, strict=True)]
    sides = zip((h, w), spans, stride, pad, after, strict=True)
    out = tuple(outputs(size, span, by, a + b) for size, span, by, a, b in sides)
    if min(out) < 1:
        return
    sizes = (h, w, c * groups, m * groups)
    conv = convolution("it", (n, *sizes), (r, s), out, stride, pad, dilation, groups)
    assert conv.out_shape == (*out, m * groups)
    for text in (as_line(conv), shape_text(conv)):
        assert request.parse_shape(text).problem == conv, text
    assert conv == Conv(h, w, c * groups, m * groups, r, s, strides=stride, pads=(*pad, *after),
                        dilation=dilation, groups=groups)  # fmt: skip


LINES = f"""# three forms

ic8ih10oc16oh10kh3ph1n"a"
  g8ic8ih10oc8kh3ph1n"depthwise"
8,10,9,16,3x1,1,0
{MIOPEN} -n 2 -c 8 -H 10 -W 10 -k 16 -p 1 -q 1 -F 1
ic8id4oc8kd3
"""


def test_file_of_lines_gives_distinct_rows_and_a_total(tmp_path):
    path, csv = tmp_path / "lines.txt", tmp_path / "out.csv"
    path.write_text(LINES)
    result = run("--from", path, "--device", "cpu", "--only", "tiled,unrolled", "--seconds", 0.02,
                 "--baseline", "unrolled", "--json", "-", "--csv", csv, code=0)  # fmt: skip
    document = json.loads(result.stdout)
    assert [(c["label"], c["shape"], c["images"], c["count"]) for c in document["cases"]] == [
        ("a", "8,10,10,16,3,1,1", 2, 2), ("depthwise", "g8ic8oc8_ih10oh10kh3ph1", 2, 1),
        ("line 5", "8,10,9,16,3x1,1,0", 1, 1),
    ]  # fmt: skip
    network = document["network"]
    rows = {row["label"]: row for row in network["rows"]}
    assert list(rows) == ["a", "depthwise", "line 5", "line 7"]
    assert rows["depthwise"]["shape"] == "g8ic8oc8_ih10oh10kh3ph1"
    assert rows["line 7"]["unsupported"] == "3 spatial dimensions"
    assert "command" not in rows["line 7"]
    assert (network["convolutions"], network["supported"]) == (5, 4)
    text = csv.read_text()
    assert "unsupported" in text and "3 spatial dimensions" in text
    assert "supports one group, not 8" in text
    assert "supported: 4 of 5 convolutions" in result.stderr
    times = {
        (case["label"], entry["name"]): entry["median_ms"]
        for case in document["cases"]
        for entry in case["candidates"]
        if "median_ms" in entry
    }
    sums = {row["name"]: row for row in document["network"]["sums"]}
    for name, over in (("tiled.blocked", 3), ("unrolled.blas", 4)):
        last = times.get(("depthwise", name), 0.0)
        assert (sums[name]["over"], sums[name]["of"]) == (over, 5)
        together = 2 * times["a", name] + times["line 5", name] + last
        assert sums[name]["ms"] == pytest.approx(together)
    tiled = sums["tiled.blocked"]
    assert sums["fastest fp32 of each"]["ms"] <= sums["unrolled.blas"]["ms"]
    flop = {case["label"]: case["count"] * case["gflop"] for case in document["cases"]}
    assert flop["depthwise"] == pytest.approx(2 * 2 * 100 * 8 * 9 / 1e9)
    assert tiled["gflop_share"] == pytest.approx(1 - flop["depthwise"] / sum(flop.values()))
    assert tiled["speedup"] == pytest.approx(tiled["baseline_ms"] / tiled["ms"])


def test_rows_have_a_command_that_repeats_them(tmp_path):
    path = tmp_path / "lines.txt"
    lines = 'mb3ic8ih10oc16oh10kh3ph1n"a"\n8,10,9,16,3x1,1,0\n'
    path.write_text(lines, "utf-8-sig")  # with a byte order mark, as some editors write it
    result = run("--from", path, "--device", "cpu", "--only", "tiled,unrolled", "--seconds", 0.02,
                 "--warmup", 2, "--json", "-")  # fmt: skip
    document = json.loads(result.stdout)
    for case in document["cases"]:
        assert f"again: {case['command']}" in result.stderr
        commands = {None: case["command"], **{e["name"]: e["command"] for e in case["candidates"]}}
        for name, command in commands.items():
            words = shlex.split(command)
            assert words[:2] == ["lenetgpu", "conv"]
            again = terminal.run(*words[1:], "--json", "-", code=0)
            (found,) = json.loads(again.stdout)["cases"]
            assert (found["shape"], found["images"]) == (case["shape"], case["images"])
            names = {entry["name"] for entry in found["candidates"]}
            every = {entry["name"] for entry in case["candidates"]}
            assert names == (every if name is None else {name, case["baseline"]})
            assert found["baseline"] == case["baseline"]


def test_repeat_command_has_all_options():
    shape = request.shape_of("8,9,9,8,3")
    asked = request.ConvRequest(
        lines=Path("x"), batch=3, device="cuda:1", seconds=0.5, only="tiled", baseline="fft",
        rounds=7, warmup=3, watch=0.0, cold_l2=True, plugins=(Path("my own.py"),),
        plot=Path("p.png"),
    )  # fmt: skip
    command = request.command_of(asked, shape)
    assert command == (
        "lenetgpu conv 8,9,9,8,3,1,0 --batch 1 --device cuda:1 --seconds 0.5 --rounds 7 --warmup 3 "
        "--watch 0.0 --cold-l2 --baseline fft --with 'my own.py' --only tiled"
    )
    assert request.command_of(asked, shape, "fft.pocketfft").endswith(" --only fft.pocketfft")
    options = {name for param in main.commands["conv"].params for name in param.opts}
    assert {word for word in shlex.split(command) if word.startswith("--")} <= options


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\nic8ih8oc8kh9 # large\n", "line 2: expected filters within the padded map of 8x8"),
        (b"1,2,3\n", "line 1: expected C,H,W,M,K"),

        (b"\xff\xfe", "expected convolutions, one per line, found text that is not UTF-8"),
        (b"#" * ((1 << 24) + 1), "at most 16,777,216 bytes"),
        (b"--dt=s8 ic8ih8oc8kh3\nic8id8oc8kd3", "found s8 operands; 1 more unsupported"),
    ],
)  # fmt: skip
def test_bad_file_is_refused_with_line_number(tmp_path, text, words):
    path = tmp_path / "lines.txt"
    path.write_bytes(text)
    terminal.refused(run("--from", path), words)


def test_conflicting_inputs_are_refused(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("ic8ih8oc8kh3\n")
    for arguments, words in (
        (
            ("--from", path, "--model", path),
            "give only one of SHAPE (C,H,W,M,K[,stride[,pad]]), --suite",
        ),
        (("--list", "--seconds", 1), "--list: cannot be combined with --seconds; combine"),
        (("--list", "--batch", 3), "one of SHAPE"),
        (("--shares", "--model", path), "--shares: cannot be combined with --model"),
        (("--from", tmp_path / "none"), "expected a file of convolutions, one per line, found no"),
        (("--from", path, "--json", path), "lines.txt"),
    ):
        terminal.refused(run(*arguments), words)
    assert path.read_text() == "ic8ih8oc8kh3\n"


# multiply-adds of an image: He and others, section 3.3 and Table 1 (3.8 billion) and 4.1 (15.3 of
# VGG-16); Sandler and others, section 6.1 (300 million)
@pytest.mark.parametrize(
    ("name", "convolutions", "depthwise", "billions", "rel"),
    [("resnet50", 53, 0, 3.8, 0.02), ("vgg16", 13, 0, 15.3, 0.005),
     ("mobilenet-v2", 53, 17, 0.300, 0.005)],
)  # fmt: skip
def test_network_suites_match_their_papers(name, convolutions, depthwise, billions, rel):
    rows = SUITES[name].rows
    assert sum(row.count for row in rows) == convolutions
    shapes = SUITES[name].shapes
    assert list(rows) == list(shapes)
    grouped = [shape for shape in shapes if shape.problem.groups > 1]
    assert sum(shape.count for shape in grouped) == depthwise
    flop = sum(shape.count * shape.problem.flop(1) for shape in shapes)
    assert flop / 2 / 1e9 == pytest.approx(billions, rel=rel)


def test_row_names_are_unique():
    names = ("same", "same (3)", "same", "same")
    sizes = enumerate(names, 1)
    asked = [Given(Conv(4, 4, c, 1, 1, 1), name=name) for c, name in sizes]
    rows = request.rows_of([*asked, asked[0], Given(None, name="same", others=("odd",))])
    assert len({row.label for row in rows}) == len(rows) == 5
    assert [row.count for row in rows] == [2, 1, 1, 1, 1]


@settings(max_examples=100, deadline=None)
@given(st.text('gmbicohwkspdnt_0123456789-=" ', max_size=40))
def test_any_text_parses_or_is_refused(text):
    for read in (benchdnn.read, lambda line: miopen.read(f"MIOpenDriver conv {line}")):
        try:
            given_ = read(text)
        except LenetError as error:
            assert "expected" in str(error)
        else:
            assert given_.problem is not None or given_.others
