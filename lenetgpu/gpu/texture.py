"""A float32 3D texture whose border reads as zero, and the surface that writes it."""

from lenetgpu.arrays import np
from lenetgpu.errors import LenetError

MAX_SIDE = 16_384


class Texture3D:
    """A CUDA array of `depth` planes of `height` x `width` floats: a texture and a surface.

    Coordinates are in elements (the centre of element i is i + 0.5); reads outside are zero.
    `texture` and `surface` are kernel arguments. Raises LenetError if the device cannot create it.
    """

    def __init__(self, width: int, height: int, depth: int) -> None:
        from cupy.cuda import runtime, texture

        try:
            kind, flags = runtime.cudaChannelFormatKindFloat, runtime.cudaArraySurfaceLoadStore
            float32 = texture.ChannelFormatDescriptor(32, 0, 0, 0, kind)
            self._array = texture.CUDAarray(float32, width, height, depth, flags)
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
            what = f"a 3D texture of {width}x{height}x{depth} floats"
            raise LenetError(f"{what}: expected the device to make one, found {error}") from error
        self.texture, self.surface = np.uint64(self._texture.ptr), np.uint64(self._surface.ptr)
