"""The course report's convolutions with its own blocks and threads, of the families they belong to.

What is beside them in `direct` and `unrolled` is after the report: other blocks, other launches.
"""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("maps", "image"))
