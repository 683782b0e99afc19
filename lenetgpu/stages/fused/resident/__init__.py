"""One image at a time: a kernel that watches the host's memory, for one image or many."""

from lenetgpu.stages.fused.resident.once import Once
from lenetgpu.stages.fused.resident.resident import Resident

__all__ = ["Once", "Resident"]
