"""SHA-256 of what an HDF5 file holds, kept in its attributes: written here, compared here.

A data set's attribute `lenetgpu_sha256` is over a line with its type and shape ("<f4 5x5x1x32\\n"),
then its elements, little-endian, in C order. The root group's is over the names, types, shapes and
attributes of all data sets that have one, and the root group's other attributes, so that what is
renamed, dropped, reshaped or described otherwise is noticed. Images that are read by parts have a
second data set beside them (`/x_sha256`): such a sum of each block of rows, a chunk each. Every
data set in chunks has HDF5's own Fletcher checksum too. Sums keep out accidents, and nobody who
writes new ones.
"""

from lenetgpu.files.checksums.new import Rows, describe, state, sum_up, write
from lenetgpu.files.checksums.stated import blocks, is_ours, stated, verify
from lenetgpu.files.checksums.sums import (
    ATTRIBUTE,
    BEFORE,
    NONE,
    OF_BLOCKS,
    Blocks,
    Sum,
    Sums,
    compare,
    sum_of,
)

__all__ = [
    "ATTRIBUTE",
    "BEFORE",
    "NONE",
    "OF_BLOCKS",
    "Blocks",
    "Rows",
    "Sum",
    "Sums",
    "blocks",
    "compare",
    "describe",
    "is_ours",
    "state",
    "stated",
    "sum_of",
    "sum_up",
    "verify",
    "write",
]
