"""What scripts/measure.py can take: a command for each file of docs/measured/DEVICE/."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from measured import ROOT

from lenetgpu.gpu.device import driver_gpus
from lenetgpu.network import STAGE_NAMES
from lenetgpu.papers.shapes import SUITES
from lenetgpu.plan import NAMED
from lenetgpu.stages.matrix import cells

LENETGPU = (sys.executable, "-m", "lenetgpu")
ABLATIONS = {
    "pascal-single": "prefetch,best.fp32",
    "pascal-multi": "prefetch,best.fp32",
    "overfeat": "texture,best.fp32",
}
"""Suites whose paper's kernels are timed step by step, beside the peer and what ships."""
_BY_BEST = "best.fp32,direct.tuned,winograd,tensor.fp16x3,tensor.wgmma_fp16x3,tensor.wgmma_tf32x3"
AGAIN = {
    "convnet2-64": ("--suite", "convnet2", "--batch", "64", "--only", _BY_BEST),
    "256x56-3x3": (
        "256,56,56,256,3,1,0",
        "--only",
        f"{_BY_BEST},prefetch.stride_fixed,prefetch.single,texture.direct,texture.split,"
        "direct.tuned_single,tensor.tf32x3",
    ),
}
"""More for the table of choices: another batch, and one of which a first run was not sure."""


@dataclass(frozen=True)
class Job:
    """A command that writes the JSON of `target`; `seconds` is a guess at what it takes.

    `{json}` in its words is where it writes, `{picture}` where it draws, `{mnist}` and `{course}`
    the data. What it prints becomes the file `text` where one is named.
    """

    part: str
    target: str
    command: tuple[str, ...]
    seconds: float
    text: str = ""
    picture: str = ""


def _script(name: str) -> tuple[str, str]:
    return sys.executable, str(ROOT / "scripts" / f"{name}.py")


def gpu_jobs(quick: bool) -> Iterator[Job]:
    """The files of a GPU."""
    each = 0.02 if quick else 0.2
    words = ("--rounds", "3", "--quick") if quick else ("--rounds", "30")
    peers = (*_script("peers"), "--data", "{mnist}", *words, "--json", "{json}")
    yield Job("peers", "peers.json", peers, 60 if quick else 280)
    few = ("--rounds", "3", "--quick") if quick else ()
    command = (*_peers("end-to-end"), "--data", "{mnist}", *few, "--json", "{json}")
    yield Job("end-to-end", "end_to_end.json", command, 30 if quick else 120)
    yield Job("one", "one.json", (*_peers("one"), *few, "--json", "{json}"), 30 if quick else 120)
    yield _cold("cuda", quick)
    yield from _cells("cuda", quick, 8)
    for name, suite in SUITES.items():
        command = (*LENETGPU, "conv", "--suite", name, "--device", "cuda", "--seconds", str(each),
                   "--watch", "0.2", "--no-progress", "--json", "{json}")  # fmt: skip
        yield Job("conv", f"conv/{name}.json", command, 15 + len(suite.shapes) * (1 + 9 * each))
    for name, only in ABLATIONS.items():
        words = ("conv", "--suite", name, "--only", only, "--device", "cuda", "--watch", "0")
        command = (
            *LENETGPU,
            *words,
            "--seconds",
            str(each / 4),
            "--no-progress",
            "--json",
            "{json}",
        )
        yield Job("ablation", f"ablation/{name}.json", command, 60)
    for name, words in AGAIN.items():
        more = ("--device", "cuda", "--watch", "0", "--seconds", str(each / 4))
        command = (*LENETGPU, "conv", *words, *more, "--no-progress", "--json", "{json}")
        yield Job("conv", f"again/{name}.json", command, 20)
    few = ("--seconds", "0.02", "--quick") if quick else ("--seconds", str(each / 2))
    winners = (*_script("winners"), *few, "--json", "{json}")
    yield Job("winners", "winners.json", winners, 30 if quick else 600)
    course = (*LENETGPU, "compare", "--suite", "course", "--device", "cuda", "--no-progress",
              "--json", "{json}")  # fmt: skip
    plot = ("--plot", "{picture}") if _can_draw() else ()
    yield Job("course", "course.json", (*course, *plot), 60, picture="course.png" if plot else "")
    drawn = ("--plot", "{picture}") if plot else ()
    words = () if quick else ("--suite", "convnet2")
    shares = (*LENETGPU, "conv", "--shares", *words, "--device", "cuda", "--no-progress", *drawn)
    yield Job("shares", "shares.json", (*shares, "--json", "{json}"), 40,
              picture="shares.png" if drawn else "")  # fmt: skip
    few = ("--images", "500") if quick else ("--images", "2000")
    yield Job("counters", "counters.json", (*_script("counters"), *few, "--json", "{json}"), 60)
    for name, devices in NAMED.items():
        if "cuda" in devices:
            yield _plan(name, 8)
    rounds = ("--rounds", "3", "--not-many") if quick else ()
    drawn = ("--picture", "{picture}") if plot else ()
    sweep = (*_script("streams_sweep"), *rounds, *drawn, "--json", "{json}")
    yield Job("streams", "streams.json", sweep, 15 if quick else 35,
              picture="streams.png" if drawn else "")  # fmt: skip
    yield _weights("cuda", quick, 60)
    yield _scale("cuda", quick, 240)
    yield _instrument("instrument.json", quick, 180, "--device", "cuda", "--each", "4",
                      "--seconds", "1")  # fmt: skip


def cpu_jobs(quick: bool) -> Iterator[Job]:
    """The files of a CPU."""
    words = ("--rounds", "2", "--quick", "--images", "500") if quick else ("--rounds", "9")
    peers = (*_script("cpu_peers"), "--data", "{mnist}", *words, "--json", "{json}")
    yield Job("peers", "peers.json", peers, 60 if quick else 720)
    # as `make infer`, which names no device where there is no GPU
    named = ("--device", "cpu") if driver_gpus() else ()
    infer = (*LENETGPU, "infer", "--batch", "10000", *named, "--no-progress", "--json", "{json}")
    yield Job("infer", "infer.json", infer, 10, text="infer.txt")
    yield _weights("cpu", quick, 600)
    yield _scale("cpu", quick, 180)
    yield _instrument("instrument.json", quick, 560)
    yield _instrument("instrument-loaded.json", quick, 620, "--load", "2")
    yield _cold("cpu", quick)
    yield from _cells("cpu", quick, 90)


def _peers(flag: str) -> tuple[str, ...]:
    return (*_script("peers"), f"--{flag}")


def _cold(device: str, quick: bool) -> Job:
    few = ("--rounds", "2", "--quick") if quick else ()
    command = (*_peers("cold"), "--device", device, *few, "--json", "{json}")
    return Job("cold", "cold.json", command, 30 if quick else 90)


def _cells(device: str, quick: bool, seconds: float) -> Iterator[Job]:
    """A comparison a stage, of what the matrix names for it on this device."""
    words = ("--batch", "300") if quick else ("--batch", "10000")
    words += ("--seconds", "0.2" if quick else str(seconds / 2), "--watch", "0.2")
    for stage in STAGE_NAMES:
        own = [c.variant.full_name for c in cells(stage) if c.variant and c.device == device
               and not c.copies]  # fmt: skip
        command = (*LENETGPU, "compare", stage, "--device", device, "--no-progress", *words,
                   "--only", ",".join(dict.fromkeys(own)), "--json", "{json}")  # fmt: skip
        yield Job("cells", f"cells/{stage}.json", command, 10 if quick else seconds)


def _instrument(target: str, quick: bool, seconds: float, *words: str) -> Job:
    runs = ("--runs", "2", "--seconds", "1") if quick else ()
    command = (*_script("instrument"), *words, *runs, "--json", "{json}")
    return Job("instrument", target, command, 20 if quick else seconds)


def _weights(device: str, quick: bool, seconds: float) -> Job:
    words = ("--images", "200") if quick else ()
    command = (*_script("any_weights"), "--device", device, *words, "--json", "{json}")
    return Job("weights", "weights.json", command, seconds)


def _scale(device: str, quick: bool, seconds: float) -> Job:
    """Whole jobs over workers and shards; on GPUs a worker on each of 1, 2, 4, ... of them."""
    words: tuple[str, ...] = ("--images", "20000", "--shards", "10000", "--rounds", "1")
    if device == "cuda":
        gpus = len(driver_gpus())
        counts = [0, *(1 << k for k in range(8) if 1 << k <= max(1, gpus))]
        if not quick:
            words = ("--images", "20000000", "--shards", "100000,1000000")
        words = (*words, "--workers", ",".join(map(str, counts)))
    elif not quick:
        words = ("--images", "800000")
    command = (*_script("scale"), "--device", device, *words, "--json", "{json}")
    return Job("scale", "scale.json", command, 30 if quick else seconds)


def _plan(name: str, seconds: float) -> Job:
    command = (
        *(*LENETGPU, "infer", "{mnist}", "--weights", "{course}", "--plan", name),
        *("--device", "cuda", "--batch", "10000", "--timing", "--no-progress", "--json", "{json}"),
    )
    return Job("plans", f"plans/{name}.json", command, seconds)


PARTS = {
    "cuda": (
        "peers",
        "end-to-end",
        "one",
        "cold",
        "cells",
        "conv",
        "ablation",
        "winners",
        "course",
        "shares",
        "counters",
        "plans",
        "streams",
        "weights",
        "scale",
        "instrument",
    ),
    "cpu": ("peers", "infer", "weights", "scale", "instrument", "cold", "cells"),
}


def _can_draw() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True
