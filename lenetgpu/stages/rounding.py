"""Filters in fp16 and in bytes whose rounding errors cancel under a flat area; on the host."""

from __future__ import annotations

from functools import partial

from lenetgpu.arrays import Array, np

_MOVES = 8


def to_half(filters: Array) -> Array:
    """(R, S, C, M) float32 as float16, the sum of each window's R x S taps kept as near as it goes.

    Rounded one by one their errors add up wherever pixels are alike. So taps of a sum that came out
    wrong go to their other neighbour, those first that lose least for what they mend.
    """
    taps = filters.reshape(-1, *filters.shape[2:])
    exact, found = taps.astype(np.float64), taps.astype(np.float16)
    for _ in range(_MOVES):
        wrong = (exact - found).sum(0)
        towards = np.copysign(np.inf, wrong).astype(np.float16)
        other = np.nextafter(found, towards)
        step = np.abs(other.astype(np.float64) - found)
        loses = np.abs(exact - other) - np.abs(exact - found)
        mends = (step < 2 * np.abs(wrong)) & (np.abs(exact - other) < step)
        price = np.where(mends, loses / np.where(mends, step, 1), np.inf)
        first = price.argmin(0)[None]
        at = partial(np.take_along_axis, indices=first, axis=0)
        np.put_along_axis(found, first, np.where(at(mends), at(other), at(found)), 0)
    return found.reshape(filters.shape)


def to_whole(filters: Array) -> Array:
    """(R, S, C, M) floats as whole ones, the sum of each window's R x S taps kept within a half.

    The taps that lose least go to their other neighbour, as in `to_half`.
    """
    taps = filters.reshape(-1, *filters.shape[2:])
    found = np.rint(taps)
    wrong = taps - found
    missing = np.rint(wrong.sum(0))
    order = np.argsort(-wrong * np.sign(missing), axis=0)
    place = np.argsort(order, axis=0)
    kept: Array = found + np.where(place < np.abs(missing), np.sign(missing), 0)
    return kept.reshape(filters.shape)
