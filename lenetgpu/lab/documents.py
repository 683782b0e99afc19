"""JSON files of earlier commands, untrusted: cleaned for a page, validated for --against.

In a page's document, texts are printable, numbers can be drawn, times are at least 0, and a missing
key reads as None. In one for --against, every value that is compared has the expected type.
"""

import json
import os
import reprlib
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from lenetgpu.errors import LenetError, one_line
from lenetgpu.files.regular import open_regular
from lenetgpu.measure.regression import Entry
from lenetgpu.plan import canonical

MAX_BYTES = 64 << 20
MOST_ROWS = 20_000
_LEAST, _MOST = 1e-30, 1e30  # of a time or a ratio, so that no sum or quotient of two overflows
TRACED = "trace"  # command assigned to a trace of `profile --trace`, which names none
_DRAWN = "infer profile compare conv peers end-to-end one cold counters streams shares"
_UNDRAWN = "weights instrument measure mutants sanitize variants doctor engines scale"
DRAWN, UNDRAWN = _DRAWN.split(), _UNDRAWN.split()  # commands with and without figures to draw


class Known(dict[str, Any]):
    """A JSON object in which a missing key reads as None."""

    def __missing__(self, key: str) -> None:
        """Return None."""

    def __or__(self, other: Mapping[str, Any]) -> "Known":  # type: ignore[override]
        return Known({**self, **other})


def _refuse(where: str, wanted: str, value: Any) -> NoReturn:
    kinds = {dict: "an object", list: "a list", type(None): "none"}
    found = kinds.get(type(value)) or reprlib.repr(value)
    raise ValueError(f"{where}: expected {wanted}, found {found}")


def number(value: Any, where: str, least: float = -_MOST) -> int | float:
    """Return `value` if it is a number that can be drawn; raise ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(where, "a number", value)
    if not least <= value <= _MOST:
        what = "a time" if least == 0 else "a number"
        _refuse(where, f"{what} from {least:g} to {_MOST:g}", value)
    return value


def text(value: Any, where: str) -> str:
    """Return `value` as one line if it is a non-empty text; raise ValueError otherwise."""
    if not isinstance(value, str) or not value:
        _refuse(where, "a text", value)
    return one_line(value)


def cleaned(value: Any, where: str, times: bool = False) -> Any:
    """Return a JSON value that is safe to show; values under keys that end in _ms are `times`."""
    if isinstance(value, dict | list) and len(value) > MOST_ROWS:
        raise ValueError(f"{where}: expected at most {MOST_ROWS:,} entries, found {len(value):,}")
    if isinstance(value, dict):
        result = Known()
        for key, part in value.items():
            timed = times or (key.endswith("_ms") and key != "residual_ms")
            result[one_line(key)] = cleaned(part, f"{where}: {one_line(key)}", timed)
        return result
    if isinstance(value, list):
        return [cleaned(part, where, times) for part in value]
    if isinstance(value, str) and not times:
        return one_line(value)
    if value is None or (isinstance(value, bool) and not times):
        return value
    return number(value, where, 0 if times else -_MOST)


def checked(value: Any) -> Known:
    """Return a document that a page can draw; raise ValueError if lenetgpu did not write it."""
    if not isinstance(value, dict):
        _refuse("document", "an object", value)
    if "traceEvents" in value:
        document: Known = cleaned(value, TRACED)
        document["command"], document["otherData"] = TRACED, document["otherData"] or Known()
        return document
    command = value.get("command")
    if isinstance(command, str) and command in UNDRAWN:
        return Known(command=command)
    if not isinstance(command, str) or command not in DRAWN:
        _refuse("command", f"one of {', '.join(DRAWN)}", command)
    document = cleaned(value, command)
    if not isinstance(document["device"], dict):
        _refuse(command, "device", document["device"])
    for key in ("kind", "name"):
        text(document["device"][key], f"{command}: device: {key}")
    for part in (document, document["ceilings"] or Known()):
        if part["date"] is not None:
            text(part["date"], f"{command}: date")
    return document


def read(path: Path, what: str, check: Callable[[Any], Any]) -> Any:
    """Return the result of `check` on the JSON of a file; raise LenetError unless it is `what`."""
    try:
        with open_regular(path, what) as raw:
            size = os.fstat(raw.fileno()).st_size
            if size > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES:,} bytes")
            data = BufferedReader(raw).read(size)  # type: ignore[type-var]
        return check(json.loads(data, parse_constant=_no_number, object_pairs_hook=current))
    except (OSError, ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise LenetError(f"{path}: expected {what}, found another document ({why})") from error


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


# Former keys -> today's
_FORMER = {f"reference{more}": f"baseline{more}" for more in ("", "_again", "_ms")}
_FORMER |= {"taken": "supported", "not_taken": "unsupported"}


def current(pairs: list[tuple[str, Any]]) -> Entry:
    """Return an object with today's keys; raise ValueError if a key occurs twice."""
    document = {_FORMER.get(key, key): value for key, value in pairs}
    if len(document) != len(pairs):
        raise ValueError("a key twice in one object")
    if document.get("verdict") == "reference":
        document["verdict"] = "baseline"
    return document


# Parts of a document that --against reads, by command, as shapes for `_shaped`
_SHAPES = json.loads(Path(__file__).with_name("earlier.json").read_text())


def _shaped(value: Any, shape: Any, where: str = "") -> Any:
    """Return the parts of a JSON value that `shape` names; raise ValueError if the types differ."""
    # A shape is "text", "flag", "positive" (a number), the name of another shape, [shape] for a
    # list, or {key: shape}; a key that ends in ? may be missing.
    if shape == "text":
        return text(value, where)
    if shape == "positive":
        return number(value, where, _LEAST)
    if shape == "flag":
        return value if isinstance(value, bool) else _refuse(where, "true or false", value)
    if isinstance(shape, str):
        shape = _SHAPES[shape]
    if not isinstance(value, type(shape)):
        _refuse(where, "an object" if isinstance(shape, dict) else "a list", value)
    if isinstance(shape, list):
        entry = where.removesuffix("s")
        return [_shaped(part, shape[0], f"{entry} {at}") for at, part in enumerate(value)]
    parts = {}
    for key, inner in shape.items():
        name = key.removesuffix("?")
        if name == key or value.get(name) is not None:
            parts[name] = _shaped(value.get(name), inner, f"{where}: {name}" if where else name)
    return parts


def _earlier(value: Any, command: str) -> Entry:
    """Return the parts of a document that --against reads; raise ValueError unless of `command`."""
    if not isinstance(value, dict) or value.get("command") != command:
        found = value.get("command") if isinstance(value, dict) else value
        _refuse("command", repr(command), found)
    document: Entry = {"cold_l2": False} | _shaped(value, command)
    for part in document.get("cases", [document]):
        for at, entry in enumerate(part["candidates"]):
            if "median_ms" in entry:
                for key in ("p05_ms", "p95_ms"):
                    number(entry.get(key), f"candidate {at}: {key}")
        if len({entry["name"] for entry in part["candidates"]}) < len(part["candidates"]):
            raise ValueError("two candidates of one name")
    return document


def load_earlier(path: Path, command: str, what: str | None) -> Entry:
    """Return what --against reads of an earlier file of `command`, with today's names of plans.

    `what` is the stage, span or "plans" of compare. Raises LenetError for any other file.
    """
    expected = f"JSON written by {command}"
    document: Entry = read(path, expected, lambda value: _earlier(value, command))
    parts = document.get("cases", [document])
    if not any("median_ms" in entry for part in parts for entry in part["candidates"]):
        raise LenetError(f"{path}: expected candidates with times, found none")
    if document.get("what") != what:
        other = document.get("what")
        raise LenetError(f"{path}: expected results of {command} {what}, found {other!r}")
    if command == "conv":
        return document
    for entry in document["candidates"]:
        entry["name"] = canonical(entry["name"])
    return document | {"baseline": canonical(document["baseline"])}
