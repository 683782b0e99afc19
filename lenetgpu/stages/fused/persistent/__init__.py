"""Single-image inference by a persistent kernel that polls host memory, for one image or many."""

from lenetgpu.stages.fused.persistent.once import Once
from lenetgpu.stages.fused.persistent.persistent import Persistent

__all__ = ["Once", "Persistent"]
