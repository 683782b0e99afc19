"""fp16 and int8 filters whose rounding errors cancel over constant regions; on the host."""

from functools import partial

from lenetgpu.arrays import Array, np

_MOVES = 8


def to_half(filters: Array) -> Array:
    """Round (R, S, C, M) float32 to float16, nearly preserving the sum of each R x S window.

    If a window's sum is off, elements are rounded the other way, least added error first.
    """
    flat = filters.reshape(-1, *filters.shape[2:])
    exact, found = flat.astype(np.float64), flat.astype(np.float16)
    for _ in range(_MOVES):
        wrong = (exact - found).sum(0)
        towards = np.copysign(np.inf, wrong).astype(np.float16)
        other = np.nextafter(found, towards)
        step = np.abs(other.astype(np.float64) - found)
        loses = np.abs(exact - other) - np.abs(exact - found)
        improves = (step < 2 * np.abs(wrong)) & (np.abs(exact - other) < step)
        cost = np.where(improves, loses / np.where(improves, step, 1), np.inf)
        first = cost.argmin(0)[None]
        at = partial(np.take_along_axis, indices=first, axis=0)
        np.put_along_axis(found, first, np.where(at(improves), at(other), at(found)), 0)
    return found.reshape(filters.shape)


def to_whole(filters: Array) -> Array:
    """Round (R, S, C, M) floats to integers, preserving each R x S window's sum to within 0.5.

    The elements that add the least error are rounded the other way, as in `to_half`.
    """
    flat = filters.reshape(-1, *filters.shape[2:])
    found = np.rint(flat)
    wrong = flat - found
    missing = np.rint(wrong.sum(0))
    order = np.argsort(-wrong * np.sign(missing), axis=0)
    rank = np.argsort(order, axis=0)
    rounded: Array = found + np.where(rank < np.abs(missing), np.sign(missing), 0)
    return rounded.reshape(filters.shape)
