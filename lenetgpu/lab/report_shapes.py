"""What a page reads of the JSON files of each command; all else in them is dropped.

A file may be a stranger's. What is kept of it has the type that is written here: the page's code
can rely on it. A key that ends in ! must be there, another is None where it is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lenetgpu.errors import one_line
from lenetgpu.lab.earlier import brief
from lenetgpu.network import CLASSES

MOST_ROWS = 20_000
_MOST = 1e30


@dataclass(frozen=True)
class Each:
    """An object whose names are the file's own, each value of the same shape."""

    shape: Any


def text(value: Any, where: str) -> str:
    """A text as it may be shown; ValueError for another thing."""
    if not isinstance(value, str):
        raise ValueError(f"{where}: expected a text, found {brief(value)}")
    return one_line(value)


def number(value: Any, where: str) -> int | float:
    """A number that can be drawn; ValueError for another thing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where}: expected a number, found {brief(value)}")
    if not -_MOST <= value <= _MOST:
        raise ValueError(f"{where}: expected a number of at most {_MOST}, found another")
    return value


def time(value: Any, where: str) -> int | float:
    """A number from 0; ValueError for another thing."""
    if number(value, where) < 0:
        raise ValueError(f"{where}: expected a time from 0, found {brief(value)}")
    return float(value) if isinstance(value, float) else int(value)


def count(value: Any, where: str) -> int:
    """A whole number from 0; ValueError for another thing."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 48:
        raise ValueError(f"{where}: expected a whole number from 0, found {brief(value)}")
    return value


def digit(value: Any, where: str) -> int:
    """A digit; ValueError for another thing."""
    if count(value, where) >= CLASSES:
        raise ValueError(f"{where}: expected a digit, found {value}")
    return int(value)


def flag(value: Any, where: str) -> bool:
    """True or false; ValueError for another thing."""
    if not isinstance(value, bool):
        raise ValueError(f"{where}: expected true or false, found {brief(value)}")
    return value


def kept(value: Any, shape: Any, where: str) -> Any:
    """What `shape` names of `value`; ValueError says `where` something else is found."""
    if isinstance(shape, dict):
        return _object(value, shape, where)
    if isinstance(shape, Each):
        if not isinstance(value, dict) or len(value) > MOST_ROWS:
            raise ValueError(f"{where}: expected an object, found {brief(value)}")
        return {
            text(key, where): None if part is None else kept(part, shape.shape, f"{where}: {key}")
            for key, part in value.items()
        }
    if isinstance(shape, list):
        if not isinstance(value, list) or len(value) > MOST_ROWS:
            found = f"{len(value):,}" if isinstance(value, list) else brief(value)
            raise ValueError(f"{where}: expected at most {MOST_ROWS:,} entries, found {found}")
        return [kept(part, shape[0], f"{where} {index}") for index, part in enumerate(value)]
    return shape(value, where)


def _object(value: Any, shape: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, found {brief(value)}")
    made = {}
    for name, part in shape.items():
        key = name.removesuffix("!")
        found = value.get(key)
        if found is None and key != name:
            raise ValueError(f"{where}: expected {key}, found none")
        made[key] = None if found is None else kept(found, part, f"{where}: {key}")
    return made


Shape = dict[str, Any]
_T, _N, _F = text, number, flag


def _fields(kind: Callable[..., Any], names: str) -> Shape:
    return dict.fromkeys(names.split(), kind)


TIMES = _fields(time, "median_ms p05_ms p95_ms")
WORK = _fields(
    _N,
    "gflop mbytes tflops gbs roofline registers shared_bytes local_bytes occupancy blocks_per_sm"
    " waves",
) | {"bound": _T, "limited_by": _T, "grid": [_N], "block": [_N]}
MACHINE = _fields(_N, "sm_mhz power_w temperature_c energy_uj_per_image") | {"throttle": [_T]}
SLOT = {"stages!": [_T], "variant!": _T}
CEILINGS = _fields(_N, "copy_gbs! fma_tflops! tensor_tflops!") | {"date": _T}
DEVICE = {"kind!": _T, "name!": _T, "compute_capability": _T, "cores": _N}
ABOUT: Shape = {
    **_fields(_T, "date version commit python numpy numba cupy driver cuda_driver nvrtc torch"),
    **_fields(_T, "data weights"),
    "cudnn": _N,
    "peers": Each(_T),
    "images": _N,
    "quick": _F,
    "interrupted": _F,
    "kernels": Each(_T),
    "ceilings": CEILINGS,
}
HEAD: Shape = ABOUT | {"command!": _T, "device!": DEVICE}
_SUMMARY = {**_fields(time, "median! p05 p95"), "samples": [time]}
STAGE = {
    "stages!": [_T], "name!": _T, "variant!": _T, **TIMES, "median_ms!": time, "share": _N, **WORK,
    "machine": MACHINE,
}  # fmt: skip
_PHASES = "import context choose schedule compile verify load copy first"
INFER: Shape = {
    **_fields(_N, "batch correct accuracy images_per_second residual_ms streams chunk"),
    **_fields(_T, "precision hint plan_name"),
    "plan!": [SLOT],
    "timing_ms!": _fields(_N, _PHASES) | {"compute!": _SUMMARY, "end_to_end!": _SUMMARY},
    "stages!": [STAGE],
    "repeated": _F,
    "notes": [_T],
    "per_digit": [{"digit!": digit, "images!": count, "correct!": count}],
    "confusions": [{"label!": digit, "predicted!": digit, "images!": count}],
}
_INTERVAL = _fields(_N, "median low high")
CANDIDATE = {
    **_fields(_T, "name! status! precision note verdict method reads writes"),
    **_fields(_N, "relative_error tolerance label_flips images scaled_from images_per_second"),
    **TIMES, **WORK,
    "same_images": _fields(_N, "images largest rms"),
    "speedup": _N, "ratio": _INTERVAL, "machine": MACHINE, "warnings": [_T], "samples_ms": [time],
}  # fmt: skip
COURSE_ROW = {
    **_fields(_T, "table! label! stage! variant! status! note explanation"),
    **_fields(_N, "report_ms speedup relative_error label_flips"),
    **TIMES, **WORK,
    "at_least": _F, "after": _F, "samples_ms": [time],
}  # fmt: skip
COMPARE: Shape = {
    **_fields(_T, "what! reference"),
    "rounds": _N,
    "candidates": [CANDIDATE],
    "rows": [COURSE_ROW],
    "ladder": [{**_fields(_T, "stage! step! verdict why"), **_fields(_N, "report_gain gain!")}],
}
CONV: Shape = {
    **_fields(_T, "suite title claim reference! peer"),
    "cases!": [
        {
            **_fields(_T, "label! shape! reference best paper"),
            **_fields(_N, "images gflop mbytes intensity rounds"),
            "candidates!": [CANDIDATE],
        }
    ],
    "summary": [{**_fields(_T, "name! shapes paper"), **_fields(_N, "geomean least most")}],
    "source": _T,
    "network": {
        "rows!": [{**_fields(_T, "label! shape name not_taken command"), "count!": count,
                   **_fields(time, "ms reference_ms"), **_fields(_N, "images gflop speedup")}],
        "sums!": [{"name!": _T, "over!": count, "of!": count, **_fields(time, "ms reference_ms"),
                   **_fields(_N, "gflop_share speedup")}],
    },
}  # fmt: skip
_CONTESTANT = {
    **_fields(_T, "name! maker! precision peer plan"),
    **TIMES,
    **_fields(_N, "flips correct judged relative_error peer_ms times_faster images streams chunk"),
    **_fields(_N, "over_copy call_median_ms call_p99_ms call_worst_ms processor_ms"),
    "median_ms!": time,
    "zero_copy": _F,
    "plans": [_T],
    "samples_ms": [time],
}
PEERS: Shape = {
    "rows!": [_CONTESTANT],
    "scaling": [{"plan!": _T, **_fields(_N, "images! ns_per_image!")}],
    "many": {"images!": _N, "rows!": [_CONTESTANT]},
    "phases_ms": Each(_N),
    "shipped_flips": Each(_N),
    "bytes": _N,
    "not_measured": [{"name!": _T, "why!": _T}],
}
_COUNTED = {
    **_fields(_T, "stage! variant! top_stall error"),
    **_fields(_N, "ms dram_read_gbs dram_write_gbs l2_gbs global_load_efficiency occupancy"),
    **_fields(_N, "global_store_efficiency shared_efficiency top_stall_share launches"),
}
COUNTERS: Shape = {
    "rows!": [_COUNTED],
    "plans": Each({"name!": _T, "plan!": [SLOT], "rows!": [_COUNTED]}),
    "source": _T,
}
STREAMS: Shape = {
    "rounds": _N,
    "sweeps!": [
        {
            **_fields(_T, "plan! dtype!"), "images!": _N,
            "rows!": [{
                "way!": _T, **TIMES, "median_ms!": time, "zero_copy": _F,
                **_fields(_N, "streams chunk taper predicted_ms samples"),
            }],
        }
    ],
}  # fmt: skip
SHARES: Shape = {
    "cases!": [
        {
            **_fields(_T, "label! shape!"),
            "images": _N,
            "kernels!": [
                {
                    **_fields(_T, "kernel! figure status! note remark"),
                    **_fields(_N, "paper median_us relative_error clocks_a_warp slowed"),
                    "shares": Each(_N),
                }
            ],
        }
    ],
}
WEIGHTS: Shape = {
    "rows!": [
        {
            "weights!": _T,
            "plans!": Each({"right": _F, "refused": _T, "error": _N, "flips": _N}),
        }
    ],
}
INSTRUMENT: Shape = {"counts!": Each(_N), "busy_processes": _N}
TRACE: Shape = {
    "traceEvents!": [
        {**_fields(_T, "name! cat ph!"), **_fields(_N, "tid ts dur"), "args": {"name": _T}}
    ],
    "otherData!": {
        "title": _T, "interrupted": _F, "made": ABOUT | {"device": DEVICE},
        **_fields(_N, "copies_ms copies_under_kernels_ms"),
    },
}  # fmt: skip
TRACED = "trace"
SHAPES: dict[str, Shape] = {
    "infer": INFER,
    "profile": INFER,
    "compare": COMPARE,
    "conv": CONV,
    "peers": PEERS,
    "end-to-end": PEERS,
    "one": PEERS,
    "cold": PEERS | {"plan": [SLOT]},
    "counters": COUNTERS,
    "streams": STREAMS,
    "shares": SHARES,
    "weights": WEIGHTS,
    "instrument": INSTRUMENT,
}
"""By a document's command; `trace` is a trace of `profile --trace`, which has none."""
UNDRAWN = ("measure", "mutants", "sanitize", "variants", "doctor", "engines", "scale")
"""Ours too, and nothing of them is drawn."""


def checked(value: Any) -> dict[str, Any]:
    """What a page needs of a document; ValueError where it is none of ours, or damaged."""
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {brief(value)}")
    if "traceEvents" in value:
        return {"command": TRACED, **kept(value, TRACE, "trace")}
    command = value.get("command")
    if isinstance(command, str) and command in UNDRAWN:
        return {"command": command}
    if not isinstance(command, str) or command not in SHAPES:
        raise ValueError(f"command: expected one of {', '.join(SHAPES)}, found {brief(command)}")
    document: dict[str, Any] = kept(value, HEAD | SHAPES[command], command)
    return document
