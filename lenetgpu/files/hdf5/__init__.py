"""The one place that opens HDF5 files, which are untrusted input.

HDF5 finds things; it reads no data but those of some bytes in an object's header. What is there is
looked at first (`trees`, `opened`), then its bytes are read where they lie (`stored`).
"""

from lenetgpu.files.hdf5.new import new_hdf5 as new_hdf5
from lenetgpu.files.hdf5.new import set_text as set_text
from lenetgpu.files.hdf5.opened import MAGIC as MAGIC
from lenetgpu.files.hdf5.opened import Untrusted as Untrusted
from lenetgpu.files.hdf5.opened import attribute as attribute
from lenetgpu.files.hdf5.opened import attribute_names as attribute_names
from lenetgpu.files.hdf5.opened import attributes as attributes
from lenetgpu.files.hdf5.opened import begins_later as begins_later
from lenetgpu.files.hdf5.opened import open_file as open_file
from lenetgpu.files.hdf5.opened import open_hdf5 as open_hdf5
from lenetgpu.files.hdf5.opened import readable as readable
from lenetgpu.files.hdf5.stored import MAX_DATASET_BYTES as MAX_DATASET_BYTES
from lenetgpu.files.hdf5.stored import Stored as Stored
from lenetgpu.files.hdf5.stored import find as find
from lenetgpu.files.hdf5.stored import read_array as read_array
from lenetgpu.files.hdf5.stored import read_rows as read_rows
from lenetgpu.files.hdf5.stored import require_written as require_written
