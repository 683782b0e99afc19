"""Records of packed images as the kernel takes them, whatever they hold: byte by byte, slowly."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from lenetgpu.files.packed.records import LONGEST


def shown(record):
    """The image of any bytes: what is not there is zero, what is outside the image is not drawn."""
    image, record = np.zeros((28, 28), np.uint8), record[:LONGEST]

    def byte(i):
        return int(record[i]) if i < len(record) else 0

    mask = sum(byte(i) << 8 * i for i in range(4))
    rows = [row for row in range(32) if mask >> row & 1]
    at = 4 + -(-10 * len(rows) // 8)
    for k, row in enumerate(rows):
        place = 4 + 10 * k // 8
        code = (byte(place) | byte(place + 1) << 8) >> 10 * k % 8 & 1023
        first, count = code & 31, (code >> 5) + 1
        for column in range(first, min(28, first + count) if row < 28 else 0):
            image[row, column] = byte(at + column - first)
        at += count
    return image


def all_shown(held, offsets, base=0):
    """Those of records in `held`, a row of uint8, between `offsets`, which count from `base`."""
    places = [int(offset) - base for offset in offsets]
    ends = pairwise(places)
    records = [held[lo : max(lo, hi)] if lo >= 0 else b"" for lo, hi in ends]
    return np.stack([shown(record) for record in records])[..., None]


def wild_cases(payload, offsets, rng):
    """(records, offsets, base) of noise, cut short, at wrong places and at none."""
    noise = rng.integers(0, 256, len(payload), dtype=np.uint8)
    wild = rng.integers(0, 1 << 32, len(offsets))
    short = np.sort(rng.integers(0, len(payload), len(offsets)))
    middle = len(payload) // 2
    return [
        (noise, offsets, 0),
        (noise[:middle], offsets, 0),
        (payload[:-3], offsets, 0),
        (payload, wild, 7),
        (payload, short, middle),
        (noise, short, 0),
        (noise, short[::-1].copy(), 3),
    ]
