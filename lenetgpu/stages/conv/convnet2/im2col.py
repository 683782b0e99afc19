"""The paper's index conversion engine: the tensor memory accelerator's im2col addressing."""

from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.errors import LenetError
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import images_within
from lenetgpu.problems import FLOAT_BYTES, Conv
from lenetgpu.stages.conv.convnet2.ladder import Tile
from lenetgpu.stages.conv.convnet2.layout import TRANSPOSE, indexable, transpose
from lenetgpu.stages.defines import conv_kernel
from lenetgpu.stages.registry import conv_variant, hopper

_VECTOR = 4
_CHUNKS = (4, 8, 16, 32)
_STRIDE_LIMIT, _CORNER_LIMIT, _OFFSET_LIMIT = 8, 128, 256
_SWIZZLE_BYTES, _BARRIER_BYTES = 1024, 8
_PIXEL_LIMIT = 2**31 - 1024
_MANY_BLOCKS = 64


@dataclass(frozen=True)
class Im2colTile(Tile):
    """The paper's parameters with output pixels for images, channels per copy, and stages."""

    stages: int

    @property
    def stage_bytes(self) -> int:
        """Shared memory per stage in bytes: windows, then filters, rounded up to the swizzle."""
        rows = self.cached_pixels * self.cached_channels
        size = rows * (self.images + self.filters) * FLOAT_BYTES
        return blocks_for(size, _SWIZZLE_BYTES) * _SWIZZLE_BYTES

    @property
    def shared_bytes(self) -> int:
        """Shared memory per block in bytes: all stages, each with a barrier."""
        return self.stages * (self.stage_bytes + _BARRIER_BYTES)

    def blocks(self, problem: Conv, images: int) -> int:
        """Return the number of blocks for `images` images."""
        pixels = images * problem.OH * problem.OW
        return blocks_for(pixels, self.images) * blocks_for(problem.M, self.filters)

    def defines(self) -> dict[str, int]:
        """Return the tile as `-D` definitions."""
        sizes = super().defines() | {"STAGE_BYTES": self.stage_bytes}
        return sizes | {"CHUNK": sizes.pop("CACHED_CHANNELS")}


def im2col_tile(problem: Conv, images: int) -> Im2colTile:
    """Return 64 output pixels, 32 filters (64 for many blocks), at least 16 rows per stage."""
    chunk = next(c for c in _CHUNKS if c >= problem.C or c == _CHUNKS[-1])
    wide = Im2colTile(16, 8, 4, 8, max(1, 16 // chunk), chunk, 3)
    if problem.M > 32 and wide.blocks(problem, images) >= _MANY_BLOCKS:
        return wide
    return replace(wide, filters_per_thread=4)


@cache
def im2col_kernel(problem: Conv, tile: Im2colTile, clock: bool = False) -> Kernel:
    """Return the kernel, which reads NHWC whatever layout the variant reads."""
    defines = tile.defines() | ({"CLOCK": 1} if clock else {})
    return conv_kernel(__file__, "conv_index_engine", replace(problem, reads="NHWC"), **defines)


def _upper(problem: Conv, side: int) -> int:
    """Return the offset of the last window's start from the image's last pixel."""
    return problem.pad - side + 1


def _supports(problem: Conv) -> str | None:
    if problem.reads == "NHWC" and problem.C % _VECTOR:
        return f"supports NHWC with channels a multiple of {_VECTOR}, needs {problem.C}"
    if problem.stride > _STRIDE_LIMIT:
        return f"supports strides up to {_STRIDE_LIMIT}, needs {problem.stride}"
    corners = (-problem.pad, _upper(problem, problem.R), _upper(problem, problem.S))
    if not all(-_CORNER_LIMIT <= corner < _CORNER_LIMIT for corner in corners):
        return f"supports padding and filters within {_CORNER_LIMIT} pixels of the image's edges"
    if max(problem.R, problem.S) > _OFFSET_LIMIT:
        return f"supports filters up to {_OFFSET_LIMIT} pixels a side"
    return indexable(problem)


@dataclass
class Windows:
    """The tile, packed filters, and a padded NHWC workspace (None if `x` is read in place)."""

    tile: Im2colTile
    filters: Any
    images: Any
    channels: int
    chunk: int
    maps: dict[tuple[int, int], Any] = field(default_factory=dict)  # by address and images

    def map_of(self, address: int, problem: Conv, images: int) -> Any:
        """Return a cached tensor map of NHWC images; raise LenetError if the driver refuses."""
        if (address, images) in self.maps:
            return self.maps[address, images]
        from cuda.bindings import driver

        sizes = (self.channels, problem.W, problem.H, images)
        pitches = [FLOAT_BYTES * prod(sizes[:n]) for n in range(1, len(sizes))]
        swizzle = {4: "NONE", 8: "32B", 16: "64B", 32: "128B"}[self.tile.cached_channels]
        status, encoded = driver.cuTensorMapEncodeIm2col(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            len(sizes),
            address,
            [driver.cuuint64_t(size) for size in sizes],
            [driver.cuuint64_t(pitch) for pitch in pitches],
            [-problem.pad, -problem.pad],
            [_upper(problem, problem.S), _upper(problem, problem.R)],
            self.tile.cached_channels,
            self.tile.images,
            [driver.cuuint32_t(step) for step in (1, problem.stride, problem.stride, 1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        if int(status) != 0:
            raise LenetError(
                f"convnet2.index_engine: the driver refuses a tensor map: {status.name}"
            )
        words = np.array([int(word) for word in encoded.opaque], np.uint64)
        self.maps[address, images] = words.view("V128")
        return self.maps[address, images]


def _prepare(w: Any, problem: Conv, batch: int) -> Windows:
    """Pack filters as (blocks, R*S, channels, filters per block), zero-padded past C and M."""
    tile = im2col_tile(problem, batch)
    elements, blocks = problem.R * problem.S, blocks_for(problem.M, tile.filters)
    deep = blocks_for(problem.C, tile.cached_channels) * tile.cached_channels
    padded = cupy.zeros((elements, deep, blocks * tile.filters), cupy.float32)
    padded[:, : problem.C, : problem.M] = cupy.asarray(w).reshape(elements, problem.C, problem.M)
    by_block = padded.reshape(elements, deep, blocks, tile.filters).transpose(2, 0, 1, 3)
    packed = cupy.ascontiguousarray(by_block)
    channels = blocks_for(problem.C, _VECTOR) * _VECTOR
    most = min(batch, _PIXEL_LIMIT // (problem.OH * problem.OW))
    if problem.reads == "NHWC":
        return Windows(tile, packed, None, channels, most)
    each = (problem.H, problem.W, channels)
    chunk = images_within(most, FLOAT_BYTES * prod(each))
    return Windows(tile, packed, cupy.empty((chunk, *each), cupy.float32), channels, chunk)


def convolve(images: Any, state: Windows, y: Any, n: int, problem: Conv, spans: Any = None) -> None:
    """Launch the kernel on `n` NHWC images; `spans` receives every block's time span."""
    tile, clock = state.tile, () if spans is None else (spans,)
    encoded = state.map_of(images.data.ptr, problem, len(images))
    args = (encoded, state.filters, y, np.int32(n * problem.OH * problem.OW), *clock)
    kernel = im2col_kernel(problem, tile, bool(clock))
    launch(kernel, (tile.blocks(problem, n),), tile.block, args, tile.shared_bytes)


@conv_variant(
    family="convnet2",
    reads=("NCHW", "NHWC"),
    writes="NCHW",
    needs=hopper(),
    prepare=_prepare,
    kernels=lambda problem, batch: (im2col_kernel(problem, im2col_tile(problem, batch)), TRANSPOSE),
    supports=_supports,
    paper="convnet2 4.3, figs. 32 to 34",
)
def index_engine(x: Any, w: Windows, y: Any, problem: Conv) -> None:
    """Index conversion by the tensor memory accelerator's im2col loads, sums on CUDA cores."""
    for lo in range(0, len(x), w.chunk):
        part, out = x[lo : lo + w.chunk], y[lo : lo + w.chunk]
        if w.images is None:
            convolve(part, w, out, len(part), problem)
        else:
            transpose(part, w.images, problem.C, problem.H * problem.W, w.channels, len(part))
            convolve(w.images, w, out, len(part), problem)
