"""Parts, tiles and instructions of the convnet2 kernels: clocked builds, arithmetic, command."""

import csv
import io
import itertools
import json
import sys
import types
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import terminal
from compiling import compiles
from test_kernels_on_a_cpu import folder, on_a_cpu  # noqa: F401
from test_kernels_on_a_cpu import version as compiler_version

from lenetgpu.check.judge import Verdict, judge
from lenetgpu.check.reference import random_input, reference
from lenetgpu.errors import LenetError
from lenetgpu.gpu import instructions, latency, machines
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.instructions import INSTRUCTIONS
from lenetgpu.gpu.machines import H200
from lenetgpu.gpu.nvrtc import compile_kernel
from lenetgpu.lab.conv import shares as command
from lenetgpu.measure.document import head
from lenetgpu.measure.timing import summarise
from lenetgpu.papers import convnet2_measured as measured
from lenetgpu.papers.convnet2 import SHAPES, TABLE_1, TABLE_1_BATCH
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.convnet2 import ladder
from lenetgpu.stages.conv.convnet2.ladder import ROLLED, UNROLLED, Tile

MANY = SHAPES["16x16x64 to 64, 5x5"][0]
ODD = Conv(5, 6, 3, 7, 3, 2, pad=1)
run = partial(terminal.run, "conv", "--shares")


# The clocked builds


@pytest.mark.slow
@compiles
@pytest.mark.parametrize(("problem", "batch"), [(TABLE_1, 128), (ODD, 1), (MANY, 128)])
def test_clock_reads_cause_no_spills(problem, batch):
    for one in measured.SHOWN:
        plain = compile_kernel(one.step.kernel(problem, batch), "sm_90a").resources
        kernel = measured.clocked(one.step).kernel(problem, batch, True)
        found = compile_kernel(kernel, "sm_90a").resources
        assert found.spill_bytes == 0, one.name
        assert found.stack_bytes == plain.stack_bytes, one.name
        assert found.shared_bytes == plain.shared_bytes, one.name


def opcodes(kernel):
    """Return a kernel's SASS instructions in order, as their nine low bits, without operands."""
    binary = compile_kernel(kernel, "sm_90a").binary
    return [word & 0x1FF for word in measured.instruction_words(binary, kernel.entry)]


FFMA, IMAD, HMMA, CLOCK, BAR = 0x23, 0x24, 0x3C, 0x05, 0x11D
LDG, LDC, LDL, LDS, STL, STS = 0x181, 0x182, 0x183, 0x184, 0x187, 0x188


@compiles
@pytest.mark.parametrize("one", measured.SHOWN, ids=lambda one: one.name)
def test_parts_contain_their_own_instructions(one):
    """The compiler moves no load, product or barrier past a clock read."""
    codes = opcodes(measured.clocked(one.step).kernel(TABLE_1, TABLE_1_BATCH, True))
    assert codes.count(CLOCK) > opcodes(one.step.kernel(TABLE_1, TABLE_1_BATCH)).count(CLOCK)
    product = HMMA if "product" in one.variant else FFMA
    products = [at for at, code in enumerate(codes) if code == product]
    barriers = [at for at, code in enumerate(codes) if code == BAR]
    loads = [at for at, code in enumerate(codes) if code == LDG]
    assert len(barriers) == 2 and products and loads
    assert barriers[0] < products[0] and products[-1] < barriers[1] and loads[-1] < barriers[0]
    clocks = [at for at, code in enumerate(codes) if code == CLOCK]
    assert any(barriers[0] < at < products[0] for at in clocks)
    assert any(products[-1] < at < barriers[1] for at in clocks)
    assert any(loads[-1] < at < barriers[0] for at in clocks)
    assert any(barriers[1] < at for at in clocks)
    assert any(loads[0] < at < loads[-1] for at in clocks)


@pytest.mark.skipif(compiler_version() < 11, reason="no g++ 11 to compile kernels for a CPU")
@pytest.mark.parametrize("problem", [ODD, Conv(3, 4, 9, 5, 2, 2)])
def test_clocked_kernel_is_correct_and_records_every_part(problem, on_a_cpu, rng):  # noqa: F811
    """Run the unrolled kernel's clocked build on a CPU, where the clock advances on every read."""
    n = 11
    step = measured.clocked(UNROLLED)
    x, w = random_input("conv", problem, n, rng)
    images = np.ascontiguousarray(x.transpose(3, 1, 2, 0))
    outputs = np.full((problem.M, problem.OH, problem.OW, n), np.nan, np.float32)
    table = np.zeros(1, np.int32)  # kernels on a CPU accept no None argument
    state = ladder.Innermost(np.ascontiguousarray(w), None, None, table, n)
    noted = np.full((measured.warps_of(step, problem, n), 6), -1, np.int64)
    step.convolve(images, state, outputs, n, problem, noted)
    found = outputs.transpose(3, 1, 2, 0)
    assert judge(found, reference("conv", x, w, problem), "fp32").passed
    assert (noted > 0).all()
    chunks = -(-problem.R * problem.S // 4) * -(-problem.C // 8)
    assert (noted.sum(axis=1) <= 64 * (2 + 5 * chunks)).all()  # at most the block's clock reads
    fractions, waits = measured.parted(noted)
    assert sum(fractions.values()) == pytest.approx(1) and tuple(fractions) == measured.PARTS
    assert all(0 < share < 1 for share in (*fractions.values(), *waits.values()))


@pytest.mark.parametrize("second", [[-1] * 6, [0] * 6])
def test_invalid_clock_readings_are_refused(second):
    with pytest.raises(LenetError, match="clocks: expected"):
        measured.parted(np.array([[1] * 6, second]))


# Tiles


def test_equation_1_by_hand():
    """Table 1: 12 of 75 rows of 64 images and 16 filters, 3,840 bytes; whole filters 24,000."""
    tile = measured.table_1_tile(TABLE_1)
    assert tile == Tile(16, 4, 4, 4, 4, 3)
    assert measured.whole_filter_bytes(TABLE_1, tile) == 4 * 75 * (64 + 16) == 24_000
    assert measured.tile_bytes(TABLE_1, tile) == 24_000 * 4 // 25 == 3_840
    single = replace(tile, images_per_thread=1, filters_per_thread=1, cached_pixels=25)
    assert (
        measured.tile_bytes(TABLE_1, single)
        == measured.whole_filter_bytes(TABLE_1, single)
        == 4 * 75 * 20
    )


@compiles
@pytest.mark.parametrize("name", SHAPES)
def test_equation_1_matches_the_compiler(name):
    """Every supported tile compiles without spilling and uses the predicted bytes."""
    problem, batch = SHAPES[name]
    swept = measured.tiles(problem)
    assert {figure for figure, _ in swept} == {"4", "5", "6", "7"}
    assert len({tile for _, tile in swept}) == len(swept) > 20
    assert sum(measured.predicted(problem, batch, *one)["table_1"] for one in swept) == 1
    supported = [tile for _, tile in swept if measured.refusal(problem, tile) is None]
    assert measured.table_1_tile(problem) in supported
    for tile in supported if name == "table 1, filters 5x5" else supported[:2]:
        used = compile_kernel(measured.step_of(tile).kernel(problem, batch), "sm_90a").resources
        assert used.shared_bytes == measured.tile_bytes(problem, tile) <= measured.STATIC_BYTES
        assert used.stack_bytes == used.spill_bytes == 0, tile


def test_tile_that_does_not_fit_is_refused():
    problem = SHAPES["table 1, filters as printed"][0]
    swept = dict(measured.tiles(problem)[:1])
    assert "requires 245,760 bytes" in measured.refusal(problem, swept["5"])
    assert measured.step_of(swept["5"]).kernel(problem, 1) not in measured.tile_kernels(problem, 1)


# Instructions

SASS = {"FFMA": FFMA, "IMAD": IMAD, "LDS": LDS, "LDL": LDL, "STS": STS, "STL": STL, "LDC": LDC,
        "LDG": LDG, "BAR": BAR}  # fmt: skip
# SASS instructions between the clocks if not 32.
TURN = {"st.shared": 16, "st.local": 16, "mul.lo.u64": 64}


@compiles
@pytest.mark.parametrize("one", INSTRUCTIONS, ids=lambda one: one.ptx)
def test_chain_consists_of_its_instruction(one):
    """32 instructions between the clocks, one pass of the loop, or the 16 stores of a step."""
    first, second = map(opcodes, one.kernels())
    assert len(first) == len(second)
    clocks = [at for at, code in enumerate(first) if code == CLOCK]
    if one.sass == "CS2R":
        assert len(clocks) >= 32
    elif one.sass in SASS:
        turns = [first[at:to].count(SASS[one.sass]) for at, to in itertools.pairwise(clocks)]
        beyond = [turn - TURN.get(one.ptx, 32) for turn in turns]
        assert any(0 <= more <= 2 for more in beyond), turns  # the loop may add some
    else:
        assert one.sass == "IADD"


# The command


class MadeUp:
    """Field in which the kernels named `wrong` are wrong."""

    def __init__(self, problem=TABLE_1, batch=TABLE_1_BATCH, wrong=()):
        self.problem = replace(problem, reads="NCHW", writes="NCHW")
        self.batch, self.wrong = batch, wrong

    def verdict(self, step, precision, spans=None):
        bad = step.entry in self.wrong
        return Verdict(not bad, 0.5 if bad else 1e-7, 1e-5)

    def convolve(self, step, spans=None):
        if spans is not None:
            spans[...] = (10, 5, 5, 60, 15, 5)


class Host(np.ndarray):
    """NumPy array with CuPy's `get`."""

    def get(self):
        return np.array(self)


def made_up_times(runs):
    """Return made-up milliseconds of each run: clocks add half."""
    return {n: summarise([1.5 if isinstance(n, tuple) and n[1] else 1.0]) for n in runs}


@pytest.fixture
def pretended(monkeypatch):
    """Replace the GPU's measurements by made-up figures."""
    arrays = types.SimpleNamespace(
        full=lambda *a: np.full(*a).view(Host), empty=np.empty, int64=np.int64
    )
    monkeypatch.setitem(sys.modules, "cupy", arrays)
    monkeypatch.setattr(measured, "current_arch", lambda: "sm_90a")
    monkeypatch.setattr(measured, "compile_together", lambda *_: None)
    monkeypatch.setattr(measured, "times", made_up_times)
    monkeypatch.setattr(command, "Field", MadeUp)
    monkeypatch.setattr(command, "choose_device", lambda wanted: (Gpu(0, "X", 90), ""))
    monkeypatch.setattr(command.gpu_device, "activate", lambda gpu: None)
    monkeypatch.setattr(command.gpu_device, "current_arch", lambda: "sm_90a")
    monkeypatch.setattr(command, "head", lambda name, gpu: head(name, None))
    monkeypatch.setattr(command, "compile_together", lambda *_: None)
    monkeypatch.setattr(instructions, "measured", lambda: {one.ptx: 4.0 for one in INSTRUCTIONS})
    monkeypatch.setattr(latency, "measured", lambda machine: latency.Latency(4.0, 800.0))
    monkeypatch.setattr(machines, "current", lambda: H200)
    return monkeypatch


@compiles
def test_command_prints_tables_and_writes_files(pretended, tmp_path):
    out, table, picture = tmp_path / "s.json", tmp_path / "s.csv", tmp_path / "s.svg"
    result = run("--json", out, "--csv", table, "--plot", picture, "--no-progress", code=0)
    for words in ("parts of a warp's time", "tiles of the unrolled kernel", "ld.local", "97.0%",
                  "its copies run under its sums", "registers are renamed"):  # fmt: skip
        assert words in result.output, words
    document = json.loads(out.read_text())
    (case,) = document["cases"]
    assert case["label"] == "table 1, filters 5x5" and document["command"] == "shares"
    assert {(row["status"], row["median_us"], row["ratio"]) for row in case["tiles"]} == {
        ("right", 1e3, 1.0)
    }
    assert len(case["tiles"]) == len(measured.tiles(TABLE_1))
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert len(rows) == len(case["kernels"]) + len(case["tiles"])
    assert picture.stat().st_size > 10_000


@compiles
def test_wrong_kernel_is_not_timed_and_exits_with_1(pretended, tmp_path):
    pretended.setattr(command, "Field", partial(MadeUp, wrong={"conv_unrolled"}))
    result = run("--json", tmp_path / "s.json", code=1)
    assert "WRONG: table 1, filters 5x5: unrolled" in result.stderr
    assert "WRONG: table 1, filters 5x5: a tile of figure 5" in result.stderr
    (case,) = json.loads((tmp_path / "s.json").read_text())["cases"]
    for row in case["tiles"]:
        assert (row["status"], row["median_us"], row["ratio"]) == ("wrong", None, None)
    found = {row["kernel"]: row for row in case["kernels"]}
    assert found["rolled"]["shares"]["compute"] == pytest.approx(0.75)
    assert found["rolled"]["slowed"] == 1.5 and found["rolled"]["median_us"] == 1e3
    assert found["unrolled"]["status"] == "wrong" and found["unrolled"]["shares"] is None
    assert found["unrolled"]["median_us"] is None and found["index_engine"]["status"] == "refused"


def test_kernels_that_need_more_memory_are_left_out(pretended):
    def none(problem, batch):
        raise MemoryError("no room")

    pretended.setattr(command, "Field", none)
    result = run()
    assert result.exit_code == 0 and "left out, requires more memory: no room" in result.stderr


# On a GPU


@pytest.fixture
def on_gpu():
    from lenetgpu.gpu import device

    gpu = device.require_gpu()
    device.activate(gpu)
    return gpu


GPU_CASES = [(TABLE_1, 128), (TABLE_1, 1), (ODD, 9), (ODD, 67), (Conv(7, 5, 19, 33, 3, 3), 65)]


@pytest.mark.gpu
@pytest.mark.parametrize(("problem", "batch"), GPU_CASES)
def test_clocked_kernels_are_correct_and_shares_sum_to_1(problem, batch, on_gpu):
    rows = measured.measure_shares(measured.Field(problem, batch), gpu=on_gpu)
    for row in rows:
        if row["status"] != "refused":
            assert row["status"] == "right", row
            assert sum(row["shares"].values()) == pytest.approx(1)
            assert min(row["shares"].values()) > 0 and row["median_us"] > 0, row
    assert len([row for row in rows if row["status"] == "right"]) == len(measured.SHOWN)
    if (problem, batch) == (TABLE_1, TABLE_1_BATCH):
        rolled, unrolled = (row["shares"]["compute"] for row in rows[:2])
        assert rolled > unrolled


@pytest.mark.gpu
def test_kernel_that_writes_nothing_is_wrong(on_gpu):
    """Outputs of an earlier kernel do not count as those of a kernel that writes none."""

    class Silent(ladder.Step):
        def convolve(self, *_):
            pass

    field = measured.Field(ODD, 9)
    assert field.verdict(ROLLED, "fp32").passed
    silent = Silent(*(getattr(ROLLED, name) for name in vars(ROLLED)))
    assert not field.verdict(silent, "fp32").passed


@pytest.mark.gpu
@pytest.mark.parametrize(("problem", "batch"), [(TABLE_1, 128), (ODD, 9)])
def test_every_tile_is_correct(problem, batch, on_gpu):
    rows = measured.measure_tiles(measured.Field(problem, batch), machines.current())
    assert len(rows) == len(measured.tiles(problem)) > 20
    assert {row["status"] for row in rows} == {"right"}
    assert all(row["shared_bytes"] == row["tile_bytes"] for row in rows)
    (base,) = [row for row in rows if row["table_1"]]
    assert base["ratio"] == 1


@pytest.mark.gpu
@pytest.mark.alone
def test_instruction_latencies_on_this_gpu():
    found = instructions.measured()
    assert all(0 < clocks < 3_000 for clocks in found.values()), found
    assert 2 <= found["mad.f32"] <= 10
    assert found["ld.global.ca"] < found["ld.global.cg"]
    assert found["ld.shared"] > found["mad.f32"]
