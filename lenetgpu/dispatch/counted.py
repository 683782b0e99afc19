"""Which times of a run `best.fp32` goes by: of what was right, and errs no more than fp32."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lenetgpu.dispatch.possible import ALGORITHMS, TILED, why_not
from lenetgpu.dispatch.prices import TENSOR, WINOGRAD
from lenetgpu.gpu.machines import Machine
from lenetgpu.problems import Conv
from lenetgpu.stages.registry import find

_PLAIN = ("direct", "prefetch", "texture")
_BAD = ("wrong", "failed")
WINOGRAD_ERR = 3.0
"""How many times as much as fp32 on the same data Winograd may err to be taken as measured."""


def inexact(problem: Conv, images: int, machine: Machine) -> tuple[str, ...]:
    """Those of Winograd's that err more than fp32 by the model, or do not take `problem`."""
    return tuple(name for name in WINOGRAD if why_not(name, problem, machine, images=images))


def counted(
    entries: Iterable[Mapping[str, Any]],
    peer: Mapping[str, Any] | None = None,
    inexact: Collection[str] = (),
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Of a case's candidates: microseconds of best's algorithms, and those not to be taken.

    These were wrong or failed, or err more than fp32: more than `peer`, cuDNN, by root mean squares
    on the same images where all have them. Else by the largest, more than `peer` and than all of
    ours that add fp32 and transform nothing; Winograd may err WINOGRAD_ERR times as much then, and
    without a `peer` within its tolerance. Those that are `inexact` by the model count where they
    were compared with a `peer` on the same images alone.
    """
    own = [entry for entry in entries if entry["name"].partition(TILED)[0] in ALGORITHMS]
    right = [entry for entry in own if entry["status"] == "right" and entry.get("median_ms")]
    peers = [] if peer is None or peer.get("relative_error") is None else [peer]
    same = all("same_images" in entry for entry in (*right, *peers))
    plain = [_erred(entry, same) or 0.0 for entry in right if _plain(entry["name"])]
    theirs = [_erred(entry, same) for entry in peers]
    limit = max(theirs if same and peers else [*plain, *theirs], default=float("inf"))
    limits = dict.fromkeys(TENSOR, limit)
    if peers:
        limits |= dict.fromkeys(WINOGRAD, limit if same else WINOGRAD_ERR * limit)
    us, dropped = {}, [entry["name"] for entry in own if entry["status"] in _BAD]
    for entry in right:
        name, error = entry["name"], _erred(entry, same)
        most = limits.get(name.partition(TILED)[0])
        unknown = name in inexact and not (same and peers)
        if unknown or (most is not None and (error is None or not error <= most)):
            dropped.append(name)
        else:
            us[name] = 1e3 * entry["median_ms"]
    return us, tuple(dropped)


def _erred(entry: Mapping[str, Any], same: bool) -> Any:
    """What a candidate erred: on the same images as all, or the largest of any."""
    return entry["same_images"]["rms"] if same else entry.get("relative_error")


def _plain(algorithm: str) -> bool:
    return find("conv", algorithm.partition(TILED)[0], "cuda").family in _PLAIN
