"""The JSON file of an earlier comparison: a stranger's, so that what counts in it is checked."""

from __future__ import annotations

import json
import os
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from lenetgpu.errors import LenetError
from lenetgpu.files.regular import open_regular
from lenetgpu.measure.regression import KEYS, Entry
from lenetgpu.plan import canonical

MAX_BYTES = 64 << 20
_LEAST, _MOST = 1e-30, 1e30  # of a time or a ratio, so that no sum or quotient of two overflows
_ROUNDING = 1 + 1e-9


def load_earlier(path: Path, command: str, what: str | None) -> Entry:
    """An earlier JSON file of `command` ("compare" or "conv") with the plans' names of today.

    `what` is the stage, span or "plans" of compare; None for conv. Raises LenetError where the file
    is something else or damaged.
    """
    try:
        document = _object(parsed(path, f"results of an earlier {command} --json"), "the document")
        parts = _checked(document, command)
    except (OSError, ValueError, RecursionError) as error:
        raise LenetError(
            f"{path}: expected JSON of {command}, found another document ({not_json(error)})"
        ) from error
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


def not_json(error: Exception) -> str:
    """Why a file is not the JSON that it should be."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def parsed(path: Path, what: str) -> Any:
    """What the file holds, `what` is expected of it; LenetError where it is no regular file.

    OSError, ValueError or RecursionError where it is no JSON.
    """
    with open_regular(path, what) as raw:
        size = os.fstat(raw.fileno()).st_size
        if size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES:,} bytes")
        data = BufferedReader(raw).read(size)  # type: ignore[type-var]
    return json.loads(data, parse_constant=_no_number, object_pairs_hook=_once)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> Entry:
    """An object, each key of which is there once."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key twice in one object")
    return made


def _checked(document: Entry, command: str) -> list[Entry]:
    """The parts that have candidates; ValueError unless all that is read of them is as it is meant.

    A document of `compare` is its own part, one of `conv` has its cases.
    """
    if document.get("command") != command:
        raise ValueError(f"command: expected {command!r}, found {brief(document.get('command'))}")
    _text(_object(document.get("device"), "device").get("name"), "device: name")
    for key in ("what", "date", "reference"):
        if document.get(key) is not None:
            _text(document[key], key)
    if not isinstance(document.get("cold_l2", False), bool | None):
        raise ValueError(f"cold_l2: expected true or false, found {brief(document['cold_l2'])}")
    if "images" in document:
        _number(document["images"], "images")
    if command != "conv":
        return [_part(document, "candidates")]
    parts = []
    for index, case in enumerate(_list(document.get("cases"), "cases")):
        where = f"case {index}"
        _object(case, where)
        for key in ("shape", "label"):
            _text(case.get(key), f"{where}: {key}")
        _number(case.get("images"), f"{where}: images")
        parts.append(_part(case, where))
    return parts


def _part(part: Entry, where: str) -> Entry:
    """`part`, whose candidates can be compared with others; ValueError where they cannot."""
    _text(part.get("reference"), f"{where}: reference")
    names = set()
    for index, entry in enumerate(_list(part.get("candidates"), f"{where}: candidates")):
        _object(entry, f"{where}: candidate {index}")
        name = _text(entry.get("name"), f"{where}: candidate {index}: name")
        if name in names:
            raise ValueError(f"{where}: candidate {index}: a name that another one has")
        names.add(name)
        if "median_ms" in entry:
            _timed(entry, f"{where}: candidate {index}")
    return part


def _timed(entry: Entry, where: str) -> None:
    """ValueError unless the times of a candidate and its ratio are numbers in order."""
    _ordered([entry.get(key) for key in ("median_ms", "p05_ms", "p95_ms")], where)
    for sample in _list(entry.get("samples_ms", []), f"{where}: samples_ms"):
        _number(sample, f"{where}: samples_ms")
    for key in ("interval_ms", "ratio"):
        if key in entry:
            interval = _object(entry[key], f"{where}: {key}")
            _ordered([interval.get(part) for part in KEYS], f"{where}: {key}")


def _ordered(interval: list[Any], where: str) -> None:
    """ValueError unless these are a value, and a low and a high one on both sides of it."""
    for number in interval:
        _number(number, where)
    value, low, high = interval
    if not low <= value * _ROUNDING or not value <= high * _ROUNDING:
        raise ValueError(f"{where}: expected {value} between its ends, found {low} and {high}")


def _object(value: Any, where: str) -> Entry:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, found {brief(value)}")
    return dict(value)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: expected a list, found {brief(value)}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: expected a text, found {brief(value)}")
    return value


def _number(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where}: expected a number, found {brief(value)}")
    if not _LEAST <= value <= _MOST:
        raise ValueError(f"{where}: expected a number from {_LEAST} to {_MOST}, found another")


def brief(value: Any) -> str:
    """A value of JSON in a sentence: a scalar as it is, of others what they are."""
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else repr(value)
