"""A float32 3D texture whose border reads as zero, and the surface through which it is written."""

from __future__ import annotations

from typing import Any

from lenetgpu.errors import LenetError

MAX_SIDE = 16_384


class Texture3D:
    """A CUDA array of `depth` planes of `height` x `width` floats: a texture and a surface.

    The texture's coordinates are in elements (the centre of element i is i + 0.5), it reads the
    nearest one, and outside the array it reads zero. Raises LenetError where the device makes none.
    """

    def __init__(self, width: int, height: int, depth: int) -> None:
        from cupy.cuda import runtime, texture

        try:
            kind = runtime.cudaChannelFormatKindFloat
            float32 = texture.ChannelFormatDescriptor(32, 0, 0, 0, kind)
            self._array = texture.CUDAarray(
                float32, width, height, depth, runtime.cudaArraySurfaceLoadStore
            )
            resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=self._array)
            border = texture.TextureDescriptor(
                (runtime.cudaAddressModeBorder,) * 3,
                runtime.cudaFilterModePoint,
                runtime.cudaReadModeElementType,
                borderColors=(0.0,) * 4,
                normalizedCoords=0,
            )
            self._texture = texture.TextureObject(resource, border)
            self._surface = texture.SurfaceObject(resource)
        except runtime.CUDARuntimeError as error:
            raise LenetError(
                f"a 3D texture of {width}x{height}x{depth} floats: expected the device to make "
                f"one, found {error}"
            ) from error

    @property
    def texture(self) -> Any:
        """The texture object, as a kernel's argument."""
        import numpy as np

        return np.uint64(self._texture.ptr)

    @property
    def surface(self) -> Any:
        """The surface object, as a kernel's argument."""
        import numpy as np

        return np.uint64(self._surface.ptr)
