"""What a comparison lost since an earlier one, and whether the two may be compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.measure.statistics import SYSTEMATIC, Interval, time_interval

Entry = dict[str, Any]
KEYS = ("median", "low", "high")
"""What an interval is in a document."""


def regressions(now: Entry, earlier: Entry, percent: float, some: bool = False) -> list[str]:
    """Sentences for candidates whose interval says they lost more than `percent` since `earlier`.

    Ratios to the baseline are compared, so that a slower day does not count; the baseline itself
    is compared by its time. A candidate that was timed then and is not now counts as lost; with
    `some`, where fewer were asked for, only if it is among those of now. Of two documents of
    `conv`, the shapes that both have are compared.
    """
    if some:
        earlier = _asked(now, earlier)
    if "cases" not in now:
        return _lost(now, earlier, percent)
    return [
        f"{old['label']}: {line}" for new, old in _same_cases(now, earlier)
        for line in _lost(new, old, percent)
    ]  # fmt: skip


def _asked(now: Entry, earlier: Entry) -> Entry:
    """`earlier` without the candidates that `now` does not name."""
    parts = now.get("cases", [now])
    names = {entry["name"] for part in parts for entry in part["candidates"]}

    def kept(part: Entry) -> Entry:
        return part | {"candidates": [e for e in part["candidates"] if e["name"] in names]}

    if "cases" not in earlier:
        return kept(earlier)
    return earlier | {"cases": [kept(case) for case in earlier["cases"]]}


def _same_cases(now: Entry, earlier: Entry) -> Iterator[tuple[Entry, Entry]]:
    before = {(case["shape"], case["images"]): case for case in earlier["cases"]}
    for case in now["cases"]:
        old = before.get((case["shape"], case["images"]))
        if old is not None:
            yield case, old


def _lost(now: Entry, earlier: Entry, percent: float) -> list[str]:
    entries = {entry["name"]: entry for entry in now["candidates"]}
    lost = []
    for old in earlier["candidates"]:
        if "median_ms" not in old:
            continue
        new = entries.get(old["name"])
        if new is None or "median_ms" not in new:
            lost.append(f"{old['name']}: timed then, not now")
            continue
        by_time = new["name"] == now["reference"] or "ratio" not in new or "ratio" not in old
        then, here = (_time(old), _time(new)) if by_time else (_ratio(old), _ratio(new))
        least = here.low / then.high
        if least > 1 + percent / 100:
            lost.append(
                f"{new['name']}: {here.value / then.value - 1:+.1%} "
                f"(at least {least - 1:+.1%} by the interval)"
            )
    return lost


def _time(entry: Entry) -> Interval:
    """An entry's time in milliseconds; of files that kept no interval, by what they kept."""
    if "interval_ms" in entry:
        return Interval(*(entry["interval_ms"][key] for key in KEYS)).widened(SYSTEMATIC)
    if entry.get("samples_ms"):
        return time_interval(entry["samples_ms"]).widened(SYSTEMATIC)
    return Interval(entry["median_ms"], entry["p05_ms"], entry["p95_ms"]).widened(SYSTEMATIC)


def _ratio(entry: Entry) -> Interval:
    return Interval(*(entry["ratio"][key] for key in KEYS))


def check_earlier(earlier: Entry, path: str, now: Entry) -> None:
    """Raise LenetError where `earlier` was measured in another setting than `now`.

    `now` holds this run's device name, reference and cold_l2, and of compare its images, of conv
    the `cases`, pairs of shape and images, of which it must have one.
    """
    wanted = dict(now)
    cases = wanted.pop("cases", None)
    then = {key: earlier.get(key) for key in wanted} | {"device": earlier["device"]["name"]}
    if "cold_l2" in then:
        then["cold_l2"] = bool(then["cold_l2"])
    for key, value in wanted.items():
        if then[key] != value:
            raise LenetError(
                f"{path}: expected {key} {value!r} as in this run, found {then[key]!r}"
            )
    if cases is None:
        return
    found = {(case["shape"], case["images"]) for case in earlier["cases"]}
    if not found & set(cases):
        raise LenetError(
            f"{path}: expected a shape of this run, as {cases[0][0]} with {cases[0][1]} images, "
            f"found {len(found)} others"
        )
