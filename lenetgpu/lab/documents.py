"""JSON files of earlier commands: what is read of each, with the type that is written here.

A file may be a stranger's. Whatever `checked` and `load_earlier` give can be relied on: a key that
ends in ! must be there, another is None, or for `load_earlier` not there, where it is missing. What
tables show of a document is written down once, in the rows' own types.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from lenetgpu.errors import LenetError, one_line
from lenetgpu.files.regular import open_regular
from lenetgpu.lab.rows import Launch, Machine, Row, Stage
from lenetgpu.measure.regression import KEYS, Entry
from lenetgpu.network import CLASSES
from lenetgpu.plan import canonical

MAX_BYTES = 64 << 20
MOST_ROWS = 20_000
_LEAST, _MOST = 1e-30, 1e30  # of a time or a ratio, so that no sum or quotient of two overflows
_ROUNDING = 1 + 1e-9
Shape = dict[str, Any]


@dataclass(frozen=True)
class Each:
    """An object whose names are the file's own, each value of the same shape."""

    shape: Any


def brief(value: Any) -> str:
    """Return a value of JSON in a sentence: a scalar as it is, of others what they are."""
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else repr(value)


def _refuse(where: str, wanted: str, value: Any) -> NoReturn:
    raise ValueError(f"{where}: expected {wanted}, found {brief(value)}")


def text(value: Any, where: str) -> str:
    """Return a text as it may be shown; ValueError for another thing."""
    if not isinstance(value, str):
        _refuse(where, "a text", value)
    return one_line(value)


def number(value: Any, where: str) -> int | float:
    """Return a number that can be drawn; ValueError for another thing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(where, "a number", value)
    if not -_MOST <= value <= _MOST:
        raise ValueError(f"{where}: expected a number of at most {_MOST}, found another")
    return value


def time(value: Any, where: str) -> int | float:
    """Return a number from 0; ValueError for another thing."""
    if number(value, where) < 0:
        _refuse(where, "a time from 0", value)
    return float(value) if isinstance(value, float) else int(value)


def count(value: Any, where: str) -> int:
    """Return a whole number from 0; ValueError for another thing."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 48:
        _refuse(where, "a whole number from 0", value)
    return value


def digit(value: Any, where: str) -> int:
    """Return a digit; ValueError for another thing."""
    if count(value, where) >= CLASSES:
        _refuse(where, "a digit", value)
    return int(value)


def flag(value: Any, where: str) -> bool:
    """Return true or false; ValueError for another thing."""
    if not isinstance(value, bool):
        _refuse(where, "true or false", value)
    return value


def kept(value: Any, shape: Any, where: str) -> Any:
    """Return what `shape` names of `value`; ValueError says `where` something else is found."""
    if isinstance(shape, dict):
        return _object(value, shape, where)
    if isinstance(shape, Each):
        if not isinstance(value, dict) or len(value) > MOST_ROWS:
            _refuse(where, "an object", value)
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


def _object(value: Any, shape: Shape, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(where, "an object", value)
    made = {}
    for name, part in shape.items():
        key = name.removesuffix("!")
        found = value.get(key)
        if found is None and key != name:
            raise ValueError(f"{where}: expected {key}, found none")
        made[key] = None if found is None else kept(found, part, f"{where}: {key}")
    return made


_T, _N, _F = text, number, flag
_TYPES = {"str": _T, "int": _N, "float": _N, "bool": _F, "list[str]": [_T], "list[int]": [_N]}


def _fields(kind: Callable[..., Any], names: str) -> Shape:
    return dict.fromkeys(names.split(), kind)


def shape_of(kind: type[Row], **more: Any) -> Shape:
    """Return the shape of the objects that a type of rows is read from, `more` in its place.

    A field that may be None may be missing; one in ms is a time.
    """
    shape: Shape = {}
    for one in fields(kind):
        inner, within = one.metadata.get("part"), one.metadata.get("within")
        if inner is not None:
            shape |= {within: shape_of(inner)} if within else shape_of(inner)
        elif one.name not in more:
            of, _, missing = str(one.type).partition(" | ")
            is_time = of == "float" and one.name.endswith("_ms")
            shape[one.name + "!" * (not missing)] = time if is_time else _TYPES[of]
    return shape | more


TIMES = _fields(time, "median_ms p05_ms p95_ms")
WORK = shape_of(Launch) | {**_fields(_N, "gflop mbytes tflops gbs roofline"), "bound": _T}
SLOT = {"stages!": [_T], "variant!": _T}
CEILINGS = _fields(_N, "copy_gbs! fma_tflops! tensor_tflops!") | {"date": _T}
DEVICE = {"kind!": _T, "name!": _T, "compute_capability": _T, "cores": _N}
ABOUT: Shape = {
    **_fields(_T, "date version commit python numpy numba cupy driver cuda_driver nvrtc torch"),
    **_fields(_T, "data weights"),
    **_fields(_N, "cudnn images"),
    **_fields(_F, "quick interrupted"),
    "peers": Each(_T),
    "kernels": Each(_T),
    "ceilings": CEILINGS,
}
HEAD: Shape = ABOUT | {"command!": _T, "device!": DEVICE}
_SUMMARY = {**_fields(time, "median! p05 p95"), "samples": [time]}
STAGE = shape_of(Stage) | WORK | {"stages!": [_T], "median_ms!": time}
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
CANDIDATE = {
    **_fields(_T, "name! status! precision note verdict method reads writes"),
    **_fields(_N, "relative_error tolerance label_flips images scaled_from images_per_second"),
    **_fields(_N, "speedup"),
    **TIMES,
    **WORK,
    "same_images": _fields(_N, "images largest rms"),
    "ratio": _fields(_N, "median low high"),
    "machine": shape_of(Machine),
    "warnings": [_T],
    "samples_ms": [time],
}
COURSE_ROW = {
    **_fields(_T, "table! label! stage! variant! status! note explanation"),
    **_fields(_N, "report_ms speedup relative_error label_flips"),
    **_fields(_F, "at_least after"),
    **TIMES,
    **WORK,
    "samples_ms": [time],
}
COMPARE: Shape = {
    **_fields(_T, "what! reference"),
    "rounds": _N,
    "candidates": [CANDIDATE],
    "rows": [COURSE_ROW],
    "ladder": [{**_fields(_T, "stage! step! verdict why"), **_fields(_N, "report_gain gain!")}],
}
_CASE = {
    **_fields(_T, "label! shape! reference best paper"),
    **_fields(_N, "images gflop mbytes intensity rounds"),
    "candidates!": [CANDIDATE],
}
_NETWORK = {
    "rows!": [
        {
            **_fields(_T, "label! shape name not_taken command"),
            **_fields(time, "ms reference_ms"),
            **_fields(_N, "images gflop speedup"),
            "count!": count,
        }
    ],
    "sums!": [
        {
            "name!": _T,
            **_fields(count, "over! of!"),
            **_fields(time, "ms reference_ms"),
            **_fields(_N, "gflop_share speedup"),
        }
    ],
}
CONV: Shape = {
    **_fields(_T, "suite title claim reference! peer source"),
    "cases!": [_CASE],
    "summary": [{**_fields(_T, "name! shapes paper"), **_fields(_N, "geomean least most")}],
    "network": _NETWORK,
}
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
_SCHEDULE = {
    "way!": _T,
    **TIMES,
    "median_ms!": time,
    "zero_copy": _F,
    **_fields(_N, "streams chunk taper predicted_ms samples"),
}
STREAMS: Shape = {
    "rounds": _N,
    "sweeps!": [{**_fields(_T, "plan! dtype!"), "images!": _N, "rows!": [_SCHEDULE]}],
}
_CLOCKED = {
    **_fields(_T, "kernel! figure status! note remark"),
    **_fields(_N, "paper median_us relative_error clocks_a_warp slowed"),
    "shares": Each(_N),
}
SHARES: Shape = {
    "cases!": [{**_fields(_T, "label! shape!"), "images": _N, "kernels!": [_CLOCKED]}],
}
_FITTED = {"right": _F, "refused": _T, "error": _N, "flips": _N}
WEIGHTS: Shape = {"rows!": [{"weights!": _T, "plans!": Each(_FITTED)}]}
INSTRUMENT: Shape = {"counts!": Each(_N), "busy_processes": _N}
TRACE: Shape = {
    "traceEvents!": [
        {**_fields(_T, "name! cat ph!"), **_fields(_N, "tid ts dur"), "args": {"name": _T}}
    ],
    "otherData!": {
        "title": _T,
        "interrupted": _F,
        "made": ABOUT | {"device": DEVICE},
        **_fields(_N, "copies_ms copies_under_kernels_ms"),
    },
}
TRACED = "trace"
SHAPES: dict[str, Shape] = {
    **dict.fromkeys(("infer", "profile"), INFER),
    **dict.fromkeys(("peers", "end-to-end", "one"), PEERS),
    "compare": COMPARE,
    "conv": CONV,
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
    """Return what a page needs of a document; ValueError where it is none of ours, or damaged."""
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


def read(path: Path, what: str, check: Callable[[Any], Any]) -> Any:
    """Return what `check` makes of the JSON of a file, which should be `what`.

    LenetError where the file is another one, or `check` raises ValueError.
    """
    try:
        with open_regular(path, what) as raw:
            size = os.fstat(raw.fileno()).st_size
            if size > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES:,} bytes")
            data = BufferedReader(raw).read(size)  # type: ignore[type-var]
        return check(json.loads(data, parse_constant=_no_number, object_pairs_hook=_once))
    except (OSError, ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        message = f"{path}: expected {what}, found another document ({why})"
        raise LenetError(message) from error


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> Entry:
    """Return an object, each key of which is there once."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key twice in one object")
    return made


def _name(value: Any, where: str) -> str:
    """Return a text that says something."""
    if not isinstance(value, str) or not value:
        _refuse(where, "a text", value)
    return value


def _positive(value: Any, where: str) -> int | float:
    """Return a time or a ratio that can be divided by."""
    if not _LEAST <= number(value, where) <= _MOST:
        raise ValueError(f"{where}: expected a number from {_LEAST} to {_MOST}, found another")
    return number(value, where)


def _interval(value: Any, where: str) -> Entry:
    """Return a value, and a low and a high one on both sides of it."""
    found = kept(value, {f"{key}!": _positive for key in KEYS}, where)
    _ordered([found[key] for key in KEYS], where)
    return dict(found)


def _ordered(interval: list[Any], where: str) -> None:
    value, low, high = interval
    if not low <= value * _ROUNDING or not value <= high * _ROUNDING:
        raise ValueError(f"{where}: expected {value} between its ends, found {low} and {high}")


_LEAST_OF = {
    "name!": _name,
    "samples_ms": [_positive],
    "interval_ms": _interval,
    "ratio": _interval,
}
_OF_TIMES = _fields(_positive, "median_ms! p05_ms! p95_ms!")


def _candidate(value: Any, where: str) -> Entry:
    """Return a candidate that others can be compared with."""
    timed = isinstance(value, dict) and "median_ms" in value
    found = kept(value, _LEAST_OF | (_OF_TIMES if timed else {}), where)
    if timed:
        _ordered([found[key] for key in ("median_ms", "p05_ms", "p95_ms")], where)
    return {key: one for key, one in found.items() if one is not None}


_PART = {"reference!": _name, "candidates!": [_candidate]}
_EARLIER = {"device!": {"name!": _name}, "date": _name, "what": _name, "cold_l2": flag}
_OF = {
    "compare": _EARLIER | _PART | {"images": _positive},
    "conv": _EARLIER
    | {
        "reference": _name,
        "cases!": [_PART | {"shape!": _name, "label!": _name, "images!": _positive}],
    },
}


def load_earlier(path: Path, command: str, what: str | None) -> Entry:
    """Return what a gate needs of an earlier JSON file of `command` ("compare" or "conv").

    `what` is the stage, span or "plans" of compare; None for conv. Plans have their names of today.
    LenetError where the file is something else or damaged.
    """

    def check(value: Any) -> Entry:
        if not isinstance(value, dict) or value.get("command") != command:
            found = value.get("command") if isinstance(value, dict) else value
            raise ValueError(f"command: expected {command!r}, found {brief(found)}")
        document = {k: v for k, v in kept(value, _OF[command], command).items() if v is not None}
        for part in document.get("cases", [document]):
            names = [entry["name"] for entry in part["candidates"]]
            if len(set(names)) < len(names):
                raise ValueError(f"{command}: two candidates of one name")
        return document

    document: Entry = read(path, f"JSON of {command}", check)
    parts = document.get("cases", [document])
    if not any("median_ms" in entry for part in parts for entry in part["candidates"]):
        raise LenetError(f"{path}: expected candidates with times, found none")
    if document.get("what") != what:
        found = document.get("what")
        raise LenetError(f"{path}: expected results of {command} {what}, found {found!r}")
    if command == "conv":
        return document
    for entry in document["candidates"]:
        entry["name"] = canonical(entry["name"])
    return document | {"reference": canonical(document["reference"])}
