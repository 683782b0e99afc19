"""The one place that opens HDF5 files, which are untrusted input.

HDF5 finds things; it reads no data but those of some bytes in an object's header. What is there is
looked at first (`guard`), then its bytes are read where they lie (`array`, `chunks`).
"""

from lenetgpu.files.hdf5.array import read_array, read_rows
from lenetgpu.files.hdf5.guard import attribute, attribute_names
from lenetgpu.files.hdf5.new import new_hdf5, set_text
from lenetgpu.files.hdf5.opened import (
    MAGIC,
    Untrusted,
    attributes,
    begins_later,
    open_file,
    open_hdf5,
    readable,
    unread_attributes,
)
from lenetgpu.files.hdf5.stored import (
    MAX_CHUNK_BYTES,
    MAX_DATASET_BYTES,
    Stored,
    find,
    require_written,
)

__all__ = [
    "MAGIC",
    "MAX_CHUNK_BYTES",
    "MAX_DATASET_BYTES",
    "Stored",
    "Untrusted",
    "attribute",
    "attribute_names",
    "attributes",
    "begins_later",
    "find",
    "new_hdf5",
    "open_file",
    "open_hdf5",
    "read_array",
    "read_rows",
    "readable",
    "require_written",
    "set_text",
    "unread_attributes",
]
