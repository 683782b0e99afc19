"""Documents of an earlier run with any damage: a right answer or one sentence, no traceback."""

from __future__ import annotations

import copy
import json
import math
import random

import pytest
from click.testing import CliRunner

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.lab import documents as reading
from lenetgpu.lab.compare import gate_note
from lenetgpu.lab.documents import load_earlier
from lenetgpu.measure.regression import check_earlier, regressions

MUTANTS = 3_000
VALUES = (
    None, True, False, 0, -1, 1, 2, 10**30, 10**400, -(10**400), 1e308, 5e-324, -0.0, math.nan,
    math.inf, -math.inf, "", "a", "fast", "1e9", "\x1b[31m", "\ud800", "x" * 5_000, [], {}, [[]],
    [None], [1, 2, 3], [[1.0]], {"name": "a"}, {"median": 1}, {"a": [{}]},
)  # fmt: skip
COMPARE = {
    "command": "compare", "what": "fc2", "date": "2026-11-23", "device": {"name": "test"},
    "images": 64, "cold_l2": False, "reference": "a",
}  # fmt: skip
CONV = {
    "command": "conv", "date": "2026-11-23", "device": {"name": "test"}, "cold_l2": None,
    "reference": "a",
}  # fmt: skip


def candidates(random_):
    made = []
    for name, size in (("a", 1.0), ("b", 2.0), ("fast", 3.0)):
        interval = {"median": size, "low": 0.99 * size, "high": 1.01 * size}
        times = {"median_ms": size, "p05_ms": 0.9 * size, "p95_ms": 1.1 * size}
        made.append({"name": name, **times, "interval_ms": interval, "ratio": dict(interval)})
    made[1] |= {"samples_ms": [2.0, 2.1, 1.9, 2.0, 2.0]}
    made[random_.randrange(3)].pop("interval_ms")
    return [*made, {"name": "refused", "status": "refused"}]


def whole(command, random_):
    if command == "compare":
        return copy.deepcopy(COMPARE) | {"candidates": candidates(random_)}
    cases = [
        {"shape": shape, "label": shape, "images": 2, "reference": "a",
         "candidates": candidates(random_)}
        for shape in ("1,8,8,4,3,1,0", "1,9,9,4,3,1,0")
    ]  # fmt: skip
    return copy.deepcopy(CONV) | {"cases": cases}


def places(value):
    """(container, key) of everything in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, dict | list):
            yield from places(item)


def mutated(document, random_):
    """`document` after up to three mistakes, as bytes."""
    for _ in range(random_.randint(1, 3)):
        found = list(places(document))
        if not found:
            break
        holder, key = random_.choice(found)
        kind = random_.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            holder[key] = copy.deepcopy(random_.choice(VALUES))
        elif kind == 2:
            holder[key] = [holder[key]]
        elif kind == 3:
            other, at = random_.choice(found)
            holder[key] = copy.deepcopy(other[at]) if at in other or isinstance(at, int) else None
        elif kind == 4 and isinstance(holder, dict):
            holder[random_.choice(["name", "median_ms", "ratio", "x"])] = random_.choice(VALUES)
        elif isinstance(holder[key], int | float) and math.isfinite(holder[key]):
            holder[key] *= random_.choice(
                [0, -1, 10**6, 10**320 if type(holder[key]) is int else 2]
            )
    data = json.dumps(document).encode()
    if random_.random() < 0.1:
        data = damaged(data, random_)
    return data


def damaged(data, random_):
    """Bytes that were cut, flipped or doubled."""
    at = random_.randrange(len(data))
    kind = random_.randrange(4)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([random_.randrange(256)]) + data[at + 1 :]
    return data + data[at:] if kind == 2 else data[:at] + data


def judged(path, command, now):
    """What the gate does with a file: its sentences, or that of its refusal."""
    try:
        earlier = load_earlier(path, command, now.get("what"))
        setting = {"device": "test", "reference": "a", "cold_l2": False}
        if command == "conv":
            setting["cases"] = [(case["shape"], case["images"]) for case in now["cases"]]
        else:
            setting["images"] = 64
        check_earlier(earlier, str(path), setting)
        lost = regressions(now, earlier, 5, some=len(path.name) % 2 == 0)
        return [gate_note(earlier, 5, lost), *lost]
    except LenetError as error:
        return [str(error)]


@pytest.mark.parametrize("command", ["compare", "conv"])
def test_mutated_documents_end_in_a_sentence(command, tmp_path):
    random_ = random.Random(13)
    now, refused = whole(command, random_), 0
    for number in range(MUTANTS // 2):
        path = tmp_path / f"{number}.json"
        path.write_bytes(mutated(whole(command, random_), random_))
        said = judged(path, command, now)
        if said[0].startswith(str(tmp_path)):
            assert said[0].isprintable(), path.read_bytes()
            refused += 1
        path.unlink()
    assert MUTANTS // 4 < refused < MUTANTS // 2  # neither all nor few of them are damaged


def nested(text, depth):
    return text.replace('"fc2"', "[" * depth + "]" * depth)


TEXTS = {
    "nothing": b"",
    "spaces": b"   ",
    "no object": b"[1, 2]",
    "a number": b"1",
    "null": b"null",
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "deep and whole": b"[" * 900 + b"]" * 900,
    "many digits": b'{"command": ' + b"9" * 10_000 + b"}",
    "huge exponent": b'{"command": 1e999999}',
    "NaN": b'{"command": NaN}',
    "key twice": b'{"command": "conv", "command": "compare"}',
    "not UTF-8": b'{"command": "\xff\xfe"}',
    "UTF-16": '{"command": "x"}'.encode("utf-16"),
    "surrogate": b'{"command": "\\ud800"}',
    "escape": b'{"command": "compare", "device": {"name": ""}, "what": "\\u001b[2J"}',
    "NUL": b"\x00" * 100,
}


@pytest.mark.parametrize("data", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("command", [["compare", "fc2"], ["conv", "1,8,8,4,3"]])
def test_what_is_no_document_is_refused_on_the_command_line(data, command, tmp_path):
    path = tmp_path / "earlier.json"
    path.write_bytes(data)
    words = [*command, "--device", "cpu", "--fail-on-regression", "5", "--against", str(path)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2, result.output
    expected = f"{path}: expected JSON of {command[0]}, found another document ("
    assert result.stderr.startswith(f"lenetgpu: error: {expected}")
    assert result.stderr[:-1].isprintable()


@pytest.mark.parametrize("depth", [5, 900])
def test_a_nested_setting_is_refused(depth, tmp_path):
    path = tmp_path / "earlier.json"
    path.write_text(nested(json.dumps(whole("compare", random.Random(1))), depth))
    with pytest.raises(LenetError, match="what: expected a text, found a list|too deeply"):
        load_earlier(path, "compare", "fc2")


def test_a_file_is_not_read_beyond_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_BYTES", 1_000)
    path = tmp_path / "earlier.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(LenetError, match="more than 1,000 bytes"):
        load_earlier(path, "compare", "fc2")


def test_an_interval_inside_out_is_refused(tmp_path):
    path = tmp_path / "earlier.json"
    document = whole("compare", random.Random(1))
    document["candidates"][1]["ratio"] = {"median": 1.0, "low": 2.0, "high": 0.5}
    path.write_text(json.dumps(document))
    with pytest.raises(LenetError, match=r"candidates 1: ratio: expected 1.0 between its ends"):
        load_earlier(path, "compare", "fc2")


def test_a_key_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "earlier.json"
    text = json.dumps(whole("compare", random.Random(1)))
    path.write_text(text.replace('"cold_l2": false', '"cold_l2": true, "cold_l2": false'))
    with pytest.raises(LenetError, match="a key twice in one object"):
        load_earlier(path, "compare", "fc2")
