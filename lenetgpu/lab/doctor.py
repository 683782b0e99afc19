"""`lenetgpu doctor`: installed packages, the GPU, caches, and the defaults that would run."""

import importlib.util
import sys
from typing import Any

from lenetgpu import __version__
from lenetgpu.cpu.threads import core_count, cpu_name
from lenetgpu.dispatch.auto import RANGES, remembered
from lenetgpu.errors import LenetError
from lenetgpu.gpu import device, nvml, nvrtc
from lenetgpu.gpu.compiler import CUPY, installed
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.software import commit, software
from lenetgpu.lab.listing import shipped
from lenetgpu.plan import AUTO, AUTO_PLANS, auto_plans, choose_device, resolve, runnable_plans
from lenetgpu.store.entries import cache_root, repair, survey

_MOST_SHOWN = 5


def _version(*names: str) -> str:
    package = installed(*names)
    return "not installed" if package is None else f"{package[0]} ({package[1]})"


def _nvrtc_line() -> str:
    if importlib.util.find_spec("cuda") is None:
        return "cuda-bindings not installed"
    try:
        return ".".join(map(str, nvrtc.version()))
    except LenetError as error:
        return str(error)


def _auto_line(gpu: Gpu | None, precision: str) -> str:
    try:
        if gpu is None:
            plan = resolve(AUTO, "cpu", None, precision)
            return ", ".join(f"{bound.name}={bound.variant.full_name}" for bound in plan.stages)
        measured = [remembered(gpu, precision, last or images) for last, images in RANGES]
        names = list(auto_plans("cuda", precision, gpu))
    except LenetError as error:
        return str(error)
    lines = [str(choice) for choice in measured if choice is not None]
    if len(lines) < len(RANGES):
        others = "not measured yet" if not lines else "other batches not measured yet"
        lines.append(f"{others}: the fastest of {', '.join(names)} (`lenetgpu warmup` measures)")
    return "; ".join(lines)


def cache_rows() -> list[tuple[str, str]]:
    """Return the cache folder, the number of entries of each kind, and each damaged entry."""
    cache = survey()
    counts = ", ".join(f"{count} {kind}" for kind, count in cache.counts.items()) or "empty"
    where = cache_root() or "none: no home folder and no LENETGPU_CACHE"
    rows = [("kernel cache", f"{where}, {counts}")]
    if cache.problems:
        shown = "; ".join(cache.problems[:_MOST_SHOWN])
        more = len(cache.problems) - _MOST_SHOWN
        others = f"; and {more} more" if more > 0 else ""
        rows.append(("damaged", f"{shown}{others} (`lenetgpu doctor --repair` removes them)"))
    return rows


def repaired() -> list[str]:
    """Empty the cache, if it belongs to the user; return what was removed, and each entry left."""
    removed = repair()
    counts = ", ".join(f"{count} {kind}" for kind, count in removed.counts.items())
    summary = f"removed from {cache_root()}: {counts or 'nothing; it was empty'}"
    return [summary, *(f"left: {sentence}" for sentence in removed.problems)]


def findings() -> list[tuple[str, str]]:
    """Return (item, finding) rows in the order in which a user would check them."""
    gpus, nvml_line = device.driver_gpus(), nvml.nvml_version() or "not found: no driver answers"
    if importlib.util.find_spec("pynvml") is None:
        nvml_line = "nvidia-ml-py not installed: clocks, power and energy are not measured"
    rows = [
        ("lenetgpu", f"{__version__}, {commit() or 'no checkout'}"),
        ("python", sys.version.split()[0]),
        ("cpu", f"{cpu_name()}, {core_count()} cores"),
        ("numpy", _version("numpy")),
        ("numba", _version("numba")),
        ("gpu", ", ".join(f"cuda:{g.index} {g.name} ({g.arch})" for g in gpus) or "none found"),
        ("cupy", _version(*CUPY)),
        ("nvrtc", _nvrtc_line()),
        ("driver", nvml.driver_version() or "none found"),
        ("nvml", nvml_line),
        ("torch", f"{_version('torch')}, timed by `conv` as a peer"),
        ("vl-convert", f"{_version('vl-convert-python')}, needed by --plot and report"),
        *cache_rows(),
        *shipped(),
    ]
    gpu, why = choose_device("auto")
    kind = "cuda" if gpu else "cpu"
    rows.append(("auto device", f"{gpu.name if gpu else kind} ({why})"))
    rows.append(("plans", ", ".join(runnable_plans(kind, gpu))))
    for precision in AUTO_PLANS:
        if kind in AUTO_PLANS[precision]:
            rows.append((f"auto {precision}", _auto_line(gpu, precision)))
    return rows


def as_json() -> dict[str, Any]:
    """Return the findings as one object."""
    used = software(next(iter(device.driver_gpus()), None))
    return {"schema": 1, "command": "doctor", **used, **dict(findings())}
