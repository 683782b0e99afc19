"""What a comparison lost since an earlier one, and whether the two may be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.measure.statistics import SYSTEMATIC, median_interval
from lenetgpu.plan import canonical


def regressions(now: dict[str, Any], earlier: dict[str, Any], percent: float) -> list[str]:
    """Sentences for candidates whose interval says they lost more than `percent` since `earlier`.

    Ratios to the reference are compared, so that a slower day does not count; the reference itself
    is compared by its time. A candidate that was timed then and is not now counts as lost.
    """
    entries = {entry["name"]: entry for entry in now["candidates"]}
    lost = []
    for old in earlier["candidates"]:
        if "samples_ms" not in old:
            continue
        entry = entries.get(old["name"])
        if entry is None or "samples_ms" not in entry:
            lost.append(f"{old['name']}: timed then, not now")
            continue
        if entry["name"] == now["reference"] or "ratio" not in entry or "ratio" not in old:
            new_i = median_interval(entry["samples_ms"]).widened(SYSTEMATIC)
            old_i = median_interval(old["samples_ms"]).widened(SYSTEMATIC)
            low, high, middle = new_i.low, old_i.high, new_i.value / old_i.value
        else:
            low, high = entry["ratio"]["low"], old["ratio"]["high"]
            middle = entry["ratio"]["median"] / old["ratio"]["median"]
        if low / high > 1 + percent / 100:
            lost.append(
                f"{entry['name']}: {middle - 1:+.1%} "
                f"(at least {low / high - 1:+.1%} by the interval)"
            )
    return lost


def load_earlier(path: Path, what: str | None) -> dict[str, Any]:
    """An earlier `compare --json` file of `what`, with the plans' names of today.

    Raises LenetError where it is something else.
    """
    import json

    from lenetgpu.files.hdf5 import require_file

    require_file(path, "results of an earlier compare --json")
    try:
        document = json.loads(path.read_text())
        command, found = document["command"], document["what"]
        complete = (
            document["device"]["name"]
            and document["reference"]
            and all(
                entry["name"] and isinstance(entry.get("samples_ms", []), list)
                for entry in document["candidates"]
            )
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LenetError(f"{path}: expected JSON of compare, found another document") from error
    if command != "compare" or not complete:
        raise LenetError(f"{path}: expected JSON of compare, found another document")
    if found != what:
        raise LenetError(f"{path}: expected results of compare {what}, found {found!r}")
    for entry in document["candidates"]:
        entry["name"] = canonical(entry["name"])
    earlier: dict[str, Any] = document | {"reference": canonical(document["reference"])}
    return earlier


def check_earlier(earlier: dict[str, Any], path: str, now: dict[str, Any]) -> None:
    """Raise LenetError where `earlier` was measured in another setting than `now`.

    `now` holds this run's device name, reference, images and cold_l2.
    """
    then = {key: earlier.get(key) for key in now} | {"device": earlier["device"]["name"]}
    for key, value in now.items():
        if then[key] != value:
            raise LenetError(
                f"{path}: expected {key} {value!r} as in this run, found {then[key]!r}"
            )
