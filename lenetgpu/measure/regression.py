"""Slowdowns since an earlier comparison, and a check that the two are comparable."""

from typing import Any

from lenetgpu.errors import unexpected
from lenetgpu.measure.statistics import SYSTEMATIC, Interval, time_interval

Entry = dict[str, Any]
KEYS = ("median", "low", "high")  # keys of an interval in a document


def regressions(now: Entry, earlier: Entry, percent: float, some: bool = False) -> list[str]:
    """Return a sentence for each candidate that is over `percent` slower than in `earlier`.

    The whole interval must show it, of ratios to the baseline or of the baseline's time. A
    candidate timed only in `earlier` counts as lost; with `some`, for a run on fewer candidates,
    only if it was requested. Documents of `conv` are compared by the shapes that both contain.
    """
    parts = now.get("cases", [now])
    requested = {entry["name"] for part in parts for entry in part["candidates"]}
    before = {_shape_of(part): part for part in earlier.get("cases", [earlier])}
    found = []
    for part in parts:
        if (old := before.get(_shape_of(part))) is not None:
            entries = [e for e in old["candidates"] if not some or e["name"] in requested]
            label = f"{old['label']}: " if "cases" in now else ""
            found += [label + line for line in _lost(part, entries, percent)]
    return found


def _shape_of(part: Entry) -> tuple[str, int] | None:
    """Return (shape, images) of a `conv` case, or None for a comparison of a stage or of plans."""
    return (part["shape"], part["images"]) if "shape" in part else None


def _lost(now: Entry, earlier: list[Entry], percent: float) -> list[str]:
    entries = {entry["name"]: entry for entry in now["candidates"]}
    lost = []
    for old in earlier:
        if "median_ms" not in old:
            continue
        new = entries.get(old["name"])
        if new is None or "median_ms" not in new:
            lost.append(f"{old['name']}: timed then, not now")
            continue
        by_time = new["name"] == now["baseline"] or "ratio" not in new or "ratio" not in old
        then, here = (
            _time(entry) if by_time else Interval(*(entry["ratio"][key] for key in KEYS))
            for entry in (old, new)
        )
        least = here.low / then.high
        if least > 1 + percent / 100:
            slower = f"{here.value / then.value - 1:+.1%}"
            lost.append(f"{new['name']}: {slower} (at least {least - 1:+.1%} by the interval)")
    return lost


def _time(entry: Entry) -> Interval:
    """Return an entry's time in milliseconds, from its interval, samples or percentiles."""
    if "interval_ms" in entry:
        interval = Interval(*(entry["interval_ms"][key] for key in KEYS))
    elif entry.get("samples_ms"):
        interval = time_interval(entry["samples_ms"])
    else:
        interval = Interval(entry["median_ms"], entry["p05_ms"], entry["p95_ms"])
    return interval.widened(SYSTEMATIC)


def check_earlier(earlier: Entry, path: str, now: Entry) -> None:
    """Raise LenetError if `earlier` was measured under other conditions than `now`.

    `now` holds this run's device name, baseline and cold_l2; for compare also its images, and
    for conv its `cases`, pairs of shape and images, of which `earlier` must have at least one.
    """
    conditions = dict(now)
    cases = conditions.pop("cases", None)
    then = earlier | {"device": earlier["device"]["name"]}
    then["cold_l2"] = bool(then.get("cold_l2"))
    for key, value in conditions.items():
        if then.get(key) != value:
            raise unexpected(path, f"{key} {value!r} as in this run", repr(then.get(key)))
    found = set(map(_shape_of, earlier.get("cases", ())))
    if cases is not None and not found & set(cases):
        expected = f"a shape of this run, as {cases[0][0]} with {cases[0][1]} images"
        raise unexpected(path, expected, f"{len(found)} others")
