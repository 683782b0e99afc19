"""The ideas of the four texts, each with what it gained then and where today's gain is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from lenetgpu.papers.convnet2 import STEPS
from lenetgpu.papers.course import (
    APART,
    FIGURES,
    HOST,
    LADDERS,
    MEAN,
    MERGED,
    RELU,
    RESIDENT,
    SERIAL_MEAN,
    SERIAL_RELU,
    STREAMS,
    streamed,
)
from lenetgpu.papers.shapes import SUITES

PEER = "torch cudnn"


@dataclass(frozen=True)
class Step:
    """One way instead of another on a stage of the course's suite, `before` and `after` by name.

    Several names on a side are stages that run one behind the other: their times add up.
    `explains` are counters of the launches (counters.json) that say why; `told` that the suite's
    own words for `after` do.
    """

    stage: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    then: float | None = None
    explains: tuple[str, ...] = ()
    told: bool = False


@dataclass(frozen=True)
class Rung:
    """A step of the cuda-convnet2 ladder, on every shape of its suite but the printed size."""

    step: str
    then: float | None = None


@dataclass(frozen=True)
class Over:
    """A kernel over another, or over the peer, on every shape of a suite where both ran."""

    suite: str
    before: str
    after: str
    then: float | None = None


@dataclass(frozen=True)
class Tile:
    """A tile of the cuda-convnet2 sweep over another, on every shape but the printed size.

    A tile is a figure of the paper, images and filters a thread, and pixels cached: None the most.
    """

    before: tuple[str, int, int, int | None]
    after: tuple[str, int, int, int | None]
    then: float | None = None


Case = Step | Rung | Over | Tile


@dataclass(frozen=True)
class Idea:
    """A row: the section that has it, in words, how it is seen today, and what the text said.

    `said` stands where the text gives no gain; `note` is a remark that no counter can make. `ours`
    is a step that the text does not have: no verdict on it.
    """

    section: str
    words: str
    cases: tuple[Case, ...]
    said: str = ""
    note: str = ""
    ours: bool = False


LOADS, STORES, SHARED, OCCUPANCY, READ, STALL = (
    "global_load_efficiency",
    "global_store_efficiency",
    "shared_efficiency",
    "occupancy",
    "dram_read_gbs",
    "top_stall",
)
_CONV = ("conv1", "conv2")
_LAST = {"conv1": "unrolled.constant_layout", "conv2": "unrolled.image_layout"}


def _then(stage: str, before: str, after: str) -> float | None:
    """The report's gain: of a ladder's neighbours, or of two of its figures."""
    for ladder, steps in LADDERS:
        for (first, old), (second, new) in pairwise(steps):
            if (ladder, first, second) == (stage, before, after):
                return old / new if old and new else None
    times = {f.variant: f.milliseconds for f in FIGURES if f.stage == stage}
    return times[before] / times[after] if before in times and after in times else None


def _step(stage: str, before: str, after: str, *explains: str) -> Step:
    return Step(stage, (before,), (after,), _then(stage, before, after), explains)


def _both(before: str, after: str, *explains: str) -> tuple[Step, ...]:
    return tuple(_step(stage, before, after, *explains) for stage in _CONV)


def _beyond(stage: str, after: str) -> Step:
    """Against the report's last kernel of `stage`."""
    return Step(stage, (_LAST.get(stage, "tiled.relu_apart"),), (after,), None, (READ, STALL))


COURSE = (
    Idea("2.1.2", "no more threads than outputs", _both("direct.basic", "direct.tight", OCCUPANCY)),
    Idea("2.1.3", "inputs in shared memory, filters in constant memory",
         _both("direct.tight", "direct.shared_constant", LOADS, STALL)),
    Idea("2.1.4", "blocks of whole warps; four maps share an input",
         (_step("conv1", "direct.shared_constant", "direct.whole_warps", OCCUPANCY),
          _step("conv2", "direct.shared_constant", "direct.quadrants", OCCUPANCY, STALL),
          _step("conv2", "direct.shared_constant", "direct.two_maps", OCCUPANCY))),
    Idea("2.2.2", "tiles of the unrolled product in shared memory",
         (_step("conv1", "unrolled.image_naive", "unrolled.image_tiled", LOADS, STALL),)),
    Idea("2.2.2", "W' transposed as it is loaded",
         _both("unrolled.image_untransposed", "unrolled.image_tiled", LOADS, SHARED), "no figure"),
    Idea("2.2.3", "W' in constant memory",
         (_step("conv1", "unrolled.image_tiled", "unrolled.image_constant", SHARED, STALL),)),
    Idea("2.2.3", "constant memory rolled in parts where W' is too large",
         (Step("conv2", ("unrolled.tiled",), ("unrolled.constant",), None, (SHARED, STALL)),),
         "left unbuilt", "both a block a tile, ours"),
    Idea("2.2.4", "the layout of the pool behind it",
         (_step("conv1", "unrolled.image_constant", "unrolled.constant_layout", STORES),
          _step("conv2", "unrolled.image_tiled", "unrolled.image_layout", LOADS, STORES))),
    Idea("2.2.6", "cuBLAS",
         (*(_beyond(s, "cublas.im2col") for s in _CONV), _beyond("fc1", "cublas.sgemm")),
         "could not be linked; 2x was expected"),
    Idea("2.3", "an unrolled product instead of a direct convolution",
         (_step("conv1", "direct.whole_warps", "unrolled.constant_layout", SHARED, STALL),
          Step("conv2", ("direct.quadrants",), ("unrolled.image_layout",), 670 / 180,
               (SHARED, STALL)))),
    Idea("2.4", "FFT", tuple(_beyond(stage, "fft.cufft") for stage in _CONV), "could not be run"),
    Idea("3.1", "two linear stages made one",
         tuple(Step(stage, (APART,), (MERGED,), told=True)
               for stage in ("pool1+conv2", "pool2+fc1")),
         "a thought"),
    Idea("3.1.1", "ReLU on the GPU", tuple(
        _step(stage, SERIAL_RELU, RELU) for stage in ("pool1", "pool2")),
         "", "serial: that machine's CPU"),
    Idea("3.2.1", "the mean on the GPU", tuple(
        _step(stage, SERIAL_MEAN, MEAN) for stage in ("pool1", "pool2")),
         "", "serial: that machine's CPU"),
    Idea("3.2.2", "ReLU inside the mean", tuple(
        Step(stage, (RELU, MEAN), ("fused.maps_looped",), told=True)
        for stage in ("pool1", "pool2")),
         "no figure", "the two kernels without the copy that keeps their input"),
    Idea("3.2.3", "the pool's input through shared memory", tuple(
        Step(stage, ("fused.relu_in_mean",), ("tiled.shared",), None, (LOADS, READ))
        for stage in ("pool1", "pool2")), "left for the layout", "both along the output, ours"),
    Idea("3.2.4", "the pool's layout", tuple(
        _step(stage, MEAN, "layout.quad_looped", LOADS, READ) for stage in ("pool1", "pool2"))),
    Idea("3.3.1", "argmax on the GPU", (_step("argmax", "serial.loops", "thread.wide_blocks"),),
         "", "serial: that machine's CPU"),
    Idea("3.3.2", "argmax by reduction: a list in shared memory, and by shuffles",
         tuple(Step("argmax", ("thread.per_image",), (name,), None, (OCCUPANCY, READ))
               for name in ("reduction.list", "reduction.shuffle")),
         "left unbuilt as too dear", "over a thread an image with as many blocks"),
    Idea("3.4", "what stages hand on stays on the GPU", (Step("all", (HOST,), (RESIDENT,)),),
         "no figure"),
    Idea("3.4.1", "convolution and pool in one kernel", (
        Step("conv1+pool1", ("conv1 unrolled.tiled", "pool1 fused.relu_in_mean"),
             ("block.unrolled",)),
        Step("conv2+pool2", ("conv2 unrolled.tiled", "pool2 fused.relu_in_mean"),
             ("block.unrolled",))), "left unbuilt", "all ours, a block a tile"),
    Idea("3.5", "streams", tuple(
        Step("all", (streamed(1, 1),), (streamed(*shape),)) for shape in STREAMS if shape[0] > 1),
         "a slight improvement"),
    Idea("3.6", "half precision", tuple(
        Step(stage, (name,), ("cublas.half",), None, (READ,))
        for stage, name in (("conv1", "cublas.im2col"), ("conv2", "cublas.im2col"),
                            ("fc1", "cublas.sgemm"))), "could not be run"),
)  # fmt: skip

_SAID = {"3.1.2": "", "3.2": "the engine was simulated; here mma.sync",
         "3.3": "the engine was simulated; here mma.sync",
         "4.3": "the paper's converter is one simulated instruction"}  # fmt: skip
_WORDS = {
    "3.1.2": "loops unrolled: sums in registers",
    "3.2": "an inner product engine",
    "3.3": "an outer product engine",
    "4.1": "strength reduction of indices",
    "4.2": "extracted conditionals",
    "4.3": "an index converter",
}


def _convnet2() -> Iterator[Idea]:
    chunks = Tile(("5", 1, 1, None), ("6", 1, 1, 16))
    yield Idea("2.2", "chunks of pixels instead of the whole filter", (chunks,), "no figure",
               "16 pixels of the filter at a time")  # fmt: skip
    several = Tile(("6", 1, 1, 4), ("7", 4, 4, 4))
    yield Idea("2.2", "several images and filters a thread", (several,), "no figure",
               "4 x 4, as Table 1 has them")  # fmt: skip
    for section, words in _WORDS.items():
        steps = [step for step in STEPS if step.section == section and step.before]
        cases = tuple(Rung(s.name, 1 / (1 - s.gain) if s.gain else None) for s in steps)
        said = "" if any(case.then for case in cases) else "drawn, no number"
        yield Idea(section, words, cases, said, _SAID.get(section, ""))


def _pascal() -> Iterator[Idea]:
    single, multi = (SUITES[name].claim for name in ("pascal-single", "pascal-multi"))
    assert single and multi
    yield Idea("3.1, 4", "one channel by P and Q, against cuDNN",
               (Over("pascal-single", PEER, "prefetch.single_strict", single[0]),))  # fmt: skip
    yield Idea("3.2, 4", "many channels by stride-fixed blocks, against cuDNN",
               (Over("pascal-multi", PEER, "prefetch.strict", multi[0]),))  # fmt: skip
    for section, words, before, after in (
        ("3.2", "S of 32 or 64 bytes instead of a filter's plane", "strict_plane", "strict"),
        ("3.2", "S of 32 or 64 bytes instead of 128", "strict_s128", "strict"),
        ("2.3", "division (e) instead of (b), the channels", "strict_channels", "strict"),
        ("2.3", "division (e) instead of (c), the filters", "strict_filters", "strict"),
        ("2.3", "division (e) instead of (d), the lines", "strict_maps", "strict"),
    ):
        case = Over("pascal-multi", f"prefetch.{before}", f"prefetch.{after}")
        yield Idea(section, words, (case,), "no figure")
    both = Over("pascal-single", "prefetch.single_strict", "prefetch.single_strict_both")
    yield Idea("3.1", "away from it: map and filters both divided", (both,), ours=True)
    for words, before, after in (
        ("away from it: copies past the registers", "strict", "strict_async"),
        ("and filters packed round by round", "strict_async", "strict_packed"),
        ("and a block for each tile", "strict_packed", "strict_spread"),
        ("and tiles too small for N_FMA", "strict_spread", "strict_filled"),
        (
            "ours after it: 2D tiles by a model, channels split, another kernel",
            "strict_filled",
            "stride_fixed",
        ),
    ):
        case = Over("pascal-multi", f"prefetch.{before}", f"prefetch.{after}")
        yield Idea("3.2", words, (case,), ours=True)


TEGRA = (
    Idea("performance", "direct convolution through textures, against cuDNN",
         (Over("overfeat", PEER, "texture.slides"),), "75 % of the peak, no library beside it"),
    Idea("workload distribution", "tiles of 5x8, a block a map",
         (Over("overfeat", "texture.direct", "texture.slides"),), "no figure",
         "over tiles and images a block by a model, ours"),
    Idea("data reuse: coefficients", "several maps a thread, warps that share the channels",
         (Over("overfeat", "texture.direct", "texture.split"),), ours=True),
)  # fmt: skip

TEXTS: tuple[tuple[str, tuple[Idea, ...]], ...] = (
    ("The course report", COURSE),
    ("cuda-convnet2", tuple(_convnet2())),
    ("Pascal", tuple(_pascal())),
    ("Tegra X1", TEGRA),
)
