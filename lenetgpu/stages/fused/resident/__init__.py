"""Single-image inference by a persistent kernel that polls host memory, for one image or many."""

from lenetgpu.stages.fused.resident.once import Once
from lenetgpu.stages.fused.resident.resident import Resident

__all__ = ["Once", "Resident"]
