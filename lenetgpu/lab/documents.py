"""JSON files of earlier commands, maybe a stranger's: cleaned for a page, checked for a gate.

A page gets documents whose texts can be shown, whose numbers can be drawn, whose times are from 0,
and in which a key that is missing is None; what else is wrong with one shows when it is drawn. A
gate gets what it compares, with the type that it takes it for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from lenetgpu.errors import LenetError, one_line
from lenetgpu.files.regular import open_regular
from lenetgpu.measure.regression import KEYS, Entry
from lenetgpu.plan import canonical

MAX_BYTES = 64 << 20
MOST_ROWS = 20_000
_LEAST, _MOST = 1e-30, 1e30  # of a time or a ratio, so that no sum or quotient of two overflows
_ROUNDING = 1 + 1e-9
TRACED = "trace"
"""The command of a trace of `profile --trace`, which names none."""
DRAWN = (
    *("infer", "profile", "compare", "conv", "peers", "end-to-end", "one", "cold", "counters"),
    *("streams", "shares"),
)
UNDRAWN = (
    "weights",
    "instrument",
    "measure",
    "mutants",
    "sanitize",
    "variants",
    "doctor",
    "engines",
    "scale",
)
"""Ours too, and nothing of them is drawn."""


class Known(dict[str, Any]):
    """An object of JSON in which a key that is missing is None."""

    def __missing__(self, key: str) -> None:
        """Return None."""

    def __or__(self, other: Mapping[str, Any]) -> Known:  # type: ignore[override]
        """Return an object with what `other` says before what this one does."""
        return Known({**self, **other})


def brief(value: Any) -> str:
    """Return a value of JSON in a sentence: a scalar as it is, of others what they are."""
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else repr(value)


def _refuse(where: str, wanted: str, value: Any) -> NoReturn:
    found = "none" if value is None else brief(value)
    raise ValueError(f"{where}: expected {wanted}, found {found}")


def number(value: Any, where: str, least: float = -_MOST) -> int | float:
    """Return a number that can be drawn; ValueError for another thing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(where, "a number", value)
    if not least <= value <= _MOST:
        what = "a time" if least == 0 and value < 0 else "a number"
        raise ValueError(
            f"{where}: expected {what} from {least:g}"
            + (f", found {value}" if what == "a time" else f" to {_MOST:g}, found another")
        )
    return value


def text(value: Any, where: str) -> str:
    """Return a text that says something; ValueError for another thing."""
    if not isinstance(value, str) or not value:
        _refuse(where, "a text", value)
    return one_line(value)


def cleaned(value: Any, where: str, times: bool = False) -> Any:
    """Return a value of JSON as it may be shown; ValueError where it is too large, or no time.

    What lies under a key that ends in _ms are `times`.
    """
    if isinstance(value, dict | list) and len(value) > MOST_ROWS:
        raise ValueError(f"{where}: expected at most {MOST_ROWS:,} entries, found {len(value):,}")
    if isinstance(value, dict):
        made = Known()
        for key, part in value.items():
            timed = times or (key.endswith("_ms") and key != "residual_ms")
            made[one_line(key)] = cleaned(part, f"{where}: {one_line(key)}", timed)
        return made
    if isinstance(value, list):
        return [cleaned(part, where, times) for part in value]
    if isinstance(value, str) and not times:
        return one_line(value)
    if value is None or (isinstance(value, bool) and not times):
        return value
    return number(value, where, 0 if times else -_MOST)


def checked(value: Any) -> Known:
    """Return a document that a page may draw; ValueError where it is none of ours."""
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {brief(value)}")
    if "traceEvents" in value:
        document: Known = cleaned(value, TRACED)
        document["command"], document["otherData"] = TRACED, document["otherData"] or Known()
        return document
    command = value.get("command")
    if isinstance(command, str) and command in UNDRAWN:
        return Known(command=command)
    if not isinstance(command, str) or command not in DRAWN:
        raise ValueError(f"command: expected one of {', '.join(DRAWN)}, found {brief(command)}")
    document = cleaned(value, command)
    if not isinstance(document["device"], dict):
        _refuse(command, "device", document["device"])
    for key in ("kind", "name"):
        text(document["device"][key], f"{command}: device: {key}")
    for key, part in (("date", document), ("date", document["ceilings"] or Known())):
        if part[key] is not None:
            text(part[key], f"{command}: {key}")
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


def _object(value: Any, where: str) -> Entry:
    if not isinstance(value, dict):
        _refuse(where, "an object", value)
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        _refuse(where, "a list", value)
    return value


def _interval(entry: Entry, keys: tuple[str, ...], where: str) -> Entry:
    """Return a value of an entry, and a low and a high one on both sides of it, by their keys."""
    value, low, high = (number(entry.get(key), f"{where}: {key}", _LEAST) for key in keys)
    if not low <= value * _ROUNDING or not value <= high * _ROUNDING:
        raise ValueError(f"{where}: expected {value} between its ends, found {low} and {high}")
    return dict(zip(keys, (value, low, high), strict=True))


def _candidate(value: Any, where: str) -> Entry:
    """Return what a gate reads of a candidate."""
    entry = _object(value, where)
    found: Entry = {"name": text(entry.get("name"), f"{where}: name")}
    if "median_ms" not in entry:
        return found
    found |= _interval(entry, ("median_ms", "p05_ms", "p95_ms"), where)
    samples = _list(entry.get("samples_ms", []), f"{where}: samples_ms")
    found["samples_ms"] = [number(one, f"{where}: samples_ms", _LEAST) for one in samples]
    for key in ("interval_ms", "ratio"):
        if key in entry:
            found[key] = _interval(_object(entry[key], f"{where}: {key}"), KEYS, f"{where}: {key}")
    return found


def _part(value: Any, where: str, *more: str) -> Entry:
    """Return what a gate reads of a comparison, or of a shape of `conv`, which has `more` texts."""
    part = _object(value, where)
    found: Entry = {key: text(part.get(key), f"{where}: {key}") for key in ("reference", *more)}
    if more or "images" in part:
        found["images"] = number(part.get("images"), f"{where}: images", _LEAST)
    every = enumerate(_list(part.get("candidates"), f"{where}: candidates"))
    found["candidates"] = [_candidate(one, f"{where}: candidate {at}") for at, one in every]
    names = {entry["name"] for entry in found["candidates"]}
    if len(names) < len(found["candidates"]):
        raise ValueError(f"{where}: two candidates of one name")
    return found


def _earlier(value: Any, command: str) -> Entry:
    """Return what a gate reads of a document of `command`; ValueError where it is another one."""
    if not isinstance(value, dict) or value.get("command") != command:
        found = value.get("command") if isinstance(value, dict) else value
        _refuse("command", repr(command), found)
    device = _object(value.get("device"), "device")
    found = {"device": {"name": text(device.get("name"), "device: name")}}
    for key in ("date", "what", "reference"):
        if value.get(key) is not None:
            found[key] = text(value[key], key)
    if not isinstance(value.get("cold_l2", False), bool | None):
        _refuse("cold_l2", "true or false", value["cold_l2"])
    found["cold_l2"] = bool(value.get("cold_l2"))
    if command != "conv":
        return found | _part(value, command)
    cases = enumerate(_list(value.get("cases"), "cases"))
    return found | {"cases": [_part(one, f"case {at}", "shape", "label") for at, one in cases]}


def load_earlier(path: Path, command: str, what: str | None) -> Entry:
    """Return what a gate needs of an earlier JSON file of `command` ("compare" or "conv").

    `what` is the stage, span or "plans" of compare; None for conv. Plans have their names of today.
    LenetError where the file is something else or damaged.
    """

    document: Entry = read(path, f"JSON of {command}", lambda value: _earlier(value, command))
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
