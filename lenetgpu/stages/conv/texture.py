"""Direct convolution from a 3D texture after the Tegra X1 slides, output tiles in registers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.texture import MAX_SIDE, Texture3D
from lenetgpu.gpu.workspace import images_within
from lenetgpu.problems import Conv
from lenetgpu.stages.conv import nchw
from lenetgpu.stages.defines import conv_kernel

BLOCK_MAPS = 32
# (tile rows, tile columns, maps) per thread; the slides' tile is 5x8 of one map
SLIDES = ((5, 8, 1), (4, 8, 1), (3, 8, 1), (4, 4, 1), (2, 4, 1), (1, 8, 1))
_FIRST = ((3, 8, 2), (4, 4, 2), (5, 4, 2), (5, 8, 1), (2, 8, 2), (1, 8, 2))
SHAPES = (*_FIRST, (2, 8, 4), (4, 4, 4), (2, 4, 4), (4, 4, 1), (2, 4, 1), (1, 8, 1))
SPLITS = (1, 2, 4, 8, 16)
_SHARED_BYTES = 48 * 1024
_MOST_REGISTERS, _OTHER_REGISTERS = 190, 30
_FILL_THREADS = 256
_MOST_STAGE, _MOST_FETCHED = 8, 16
_HELD = {1: 36, 2: 20, 4: 20}  # coefficients in one set of registers, by maps
_PLENTY, _RANK_COST = 10_000, 0.002
# Fitted to measurements of 400 tilings of 12 shapes on one H200.
_BUSY_WARPS, _WORD_CYCLES, _TEXEL_CYCLES, _SET_CYCLES = 12, 1.3, 0.1, 900
_SECTOR_CYCLES, _MARGIN = 2.5, 1.1
_SHORT_SUM = 256
Convolve = Callable[[int, Any], None]


def _largest_divisor(number: int, limit: int) -> int:
    return next(d for d in range(max(1, min(number, limit)), 0, -1) if number % d == 0)


@dataclass(frozen=True)
class Tiling:
    """A thread's outputs in `maps` maps; a block's tiles, down and across, in `images` images."""

    problem: Conv
    tile: tuple[int, int]
    maps: int
    tiles: tuple[int, int]
    images: int = 1
    split: int = 1  # units of a block that divide the channels of the same outputs

    @property
    def unit(self) -> int:
        """Threads, in whole warps, that compute a block's outputs from the same channels."""
        lanes = self.images * self.tiles[0] * self.tiles[1] * BLOCK_MAPS // self.maps
        return blocks_for(lanes, 32) * 32

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.unit * self.split

    @property
    def footprint(self) -> tuple[int, int]:
        """Input rows and columns under a block's outputs."""
        p = self.problem
        rows = (self.tiles[0] * self.tile[0] - 1) * p.stride + p.R
        return rows, (self.tiles[1] * self.tile[1] - 1) * p.stride + p.S

    @property
    def fetches(self) -> int:
        """Pixels of a channel that a thread fetches."""
        return blocks_for(self.footprint[0] * self.footprint[1], self.unit) * self.images

    @property
    def input_bytes(self) -> int:
        """Shared memory for two channels of all units in bytes, rows aligned to 16 bytes."""
        row = 16 * blocks_for(self.footprint[1], 4)
        return self.split * 2 * self.images * self.footprint[0] * row

    @property
    def filter_rows(self) -> int:
        """Filter rows in one set of coefficient registers: all of them, or one."""
        p = self.problem
        return p.R if p.R * p.S * self.maps <= _HELD[self.maps] else 1

    @property
    def stage(self) -> int:
        """Channels fetched at a time, a divisor of a unit's channels."""
        most = min(_SHARED_BYTES // self.input_bytes, _MOST_FETCHED // self.fetches, _MOST_STAGE)
        return _largest_divisor(self.problem.C // self.split, most)

    @property
    def set_channels(self) -> int:
        """Channels in one set of coefficient registers."""
        p = self.problem
        if self.filter_rows < p.R:
            return 1
        return _largest_divisor(self.stage, _HELD[self.maps] // (p.R * p.S * self.maps))

    @property
    def elements(self) -> int:
        """Coefficients of a map in one set."""
        return self.set_channels * self.filter_rows * self.problem.S

    @property
    def registers(self) -> int:
        """Estimated registers per thread."""
        row = (self.tile[1] - 1) * self.problem.stride + self.problem.S
        sums = self.tile[0] * self.tile[1] * self.maps
        fetched = self.fetches * self.stage
        return sums + 2 * self.elements * self.maps + 2 * row + fetched + _OTHER_REGISTERS

    @property
    def fits(self) -> bool:
        """True if the registers and shared memory suffice."""
        outputs = self.tile[0] * self.tile[1] * self.maps
        shared = max(self.input_bytes, (self.split - 1) * 4 * outputs * self.unit)
        return (
            shared <= _SHARED_BYTES
            and self.problem.C % self.split == 0
            and self.fetches <= _MOST_FETCHED
            and self.registers <= _MOST_REGISTERS
        )

    @property
    def paired_stores(self) -> bool:
        """True if lanes write whole sectors in pairs, which pays off if stores dominate."""
        p = self.problem
        return self.tile[1] == 8 and p.OW % 4 == 0 and p.gemm_k <= _SHORT_SUM

    def blocks(self, n: int) -> int:
        """Return the number of blocks for `n` images."""
        p = self.problem
        rows = blocks_for(p.OH, self.tiles[0] * self.tile[0])
        columns = blocks_for(p.OW, self.tiles[1] * self.tile[1])
        return blocks_for(n, self.images) * rows * columns * blocks_for(p.M, BLOCK_MAPS)

    def cycles(self, n: int, machine: Machine) -> float:
        """Estimate the cycles for `n` images: multiply-adds, shared memory or waits for sets."""
        p = self.problem
        blocks, warps = blocks_for(self.blocks(n), machine.multiprocessors), self.unit // 32
        elements = p.R * p.S * self.maps
        row = blocks_for((self.tile[1] - 1) * p.stride + p.S, 2) * 2
        rows = ((self.tile[0] - 1) * p.stride + self.filter_rows) * (p.R // self.filter_rows)
        # `registers` is an estimate; rounding to the register file's unit would not help
        registers = _MARGIN * self.registers * self.threads
        blocks_at_once = max(1, int(machine.limits.registers / registers))
        resident = min(blocks, blocks_at_once) * warps * self.split
        multiply = elements * self.tile[0] * self.tile[1] * blocks * warps / 4
        multiply /= min(1.0, resident / _BUSY_WARPS)
        words = (rows * row + elements) * blocks * warps
        texels = self.footprint[0] * self.footprint[1] * self.images * blocks
        sets = p.R / (self.filter_rows * self.set_channels)
        waits = _SET_CYCLES * sets * blocks * warps / resident
        summing = p.C * max(multiply, _WORD_CYCLES * words + _TEXEL_CYCLES * texels, waits)
        if p.gemm_k > _SHORT_SUM:
            return summing
        floats = 8 if self.paired_stores else 2 if p.OW % 4 == 0 else 1
        stores = self.tile[0] * self.tile[1] * BLOCK_MAPS * self.tiles[0] * self.tiles[1] / floats
        return summing + _SECTOR_CYCLES * stores * self.images * blocks

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel compiled for this tiling."""
        (high, wide), (y, x) = self.tile, self.tiles
        sizes = {"TILE_H": high, "TILE_W": wide, "BLOCK_Y": y, "BLOCK_X": x}
        sizes |= {"MAPS_EACH": self.maps, "IMAGES_EACH": self.images, "BLOCK_MAPS": BLOCK_MAPS}
        for name in ("threads", "stage", "filter_rows", "set_channels", "split", "paired_stores"):
            sizes[name.upper()] = int(getattr(self, name))
        return conv_kernel(__file__, "conv_texture", self.problem, **sizes)


def _candidates(problem: Conv, slides: bool) -> Iterator[tuple[int, Tiling]]:
    """Yield (index of the shape, tiling): one or four warps, or warps that divide channels."""
    for rank, (rows, columns, maps) in enumerate(SLIDES if slides else SHAPES):
        down, across = blocks_for(problem.OH, rows), blocks_for(problem.OW, columns)
        for split in SPLITS[:1] if slides else SPLITS:
            for most in (maps, 4 * maps) if split == 1 else (maps,):
                for y in range(1, min(down, most) + 1):
                    x = min(across, most // y)
                    images = most // (y * x) if (y, x) == (down, across) else 1
                    tiling = Tiling(problem, (rows, columns), maps, (y, x), images, split)
                    if tiling.fits:
                        yield rank, tiling


@cache
def tilings(problem: Conv, machine: Machine, slides: bool = False) -> tuple[Tiling, ...]:
    """Return the fastest tilings for one image and for many, if any fits; `slides`: of SLIDES."""
    candidates = list(_candidates(problem, slides))

    def fastest(n: int) -> Tiling:
        def cycles(candidate: tuple[int, Tiling]) -> float:
            return candidate[1].cycles(n, machine) * (1 + _RANK_COST * candidate[0])

        return min(candidates, key=cycles)[1]

    return tuple(dict.fromkeys(fastest(n) for n in (1, _PLENTY) if candidates))


@cache
def tiling_for(problem: Conv, n: int, machine: Machine, slides: bool = False) -> Tiling:
    """Return the faster of `tilings` for `n` images on `machine`."""
    return min(tilings(problem, machine, slides), key=lambda tiling: tiling.cycles(n, machine))


# Problem -> the kernel that copies images into a texture's array
fill_kernel = cache(partial(conv_kernel, __file__, "fill_texture", FILL_THREADS=_FILL_THREADS))


def refusal(problem: Conv) -> str | None:
    """Return the reason if a texture is too small for the problem, else None."""
    if max(problem.H, problem.W, problem.C) > MAX_SIDE:
        return f"supports maps and channels up to {MAX_SIDE}, a 3D texture's side"
    return None


@dataclass
class Prepared:
    """Coefficients (C, R, S, whole blocks of maps), followed by spare zeros, and the texture."""

    coefficients: Any
    input: Texture3D
    chunk: int


def _prepare(w: Any, problem: Conv, batch: int) -> Prepared:
    by_channel = np.asarray(w, np.float32).transpose(2, 0, 1, 3).reshape(problem.gemm_k, problem.M)
    spare = (0, max(*_HELD.values(), problem.S)), (0, -problem.M % BLOCK_MAPS)
    packed = cupy.asarray(np.pad(by_channel, spare))
    images = min(batch, MAX_SIDE // problem.C)
    chunk = images_within(images, 4 * problem.H * problem.W * problem.C)
    return Prepared(packed, Texture3D(problem.W, problem.H, chunk * problem.C), chunk)


def by_parts(x: Any, w: Prepared, y: Any, problem: Conv, convolve: Convolve) -> None:
    """Copy images to the texture part by part, and call `convolve(images in the part, their y)`."""
    for lo in range(0, len(x), w.chunk):
        part = x[lo : lo + w.chunk]
        grid = (blocks_for(part.size, _FILL_THREADS),)
        args = (w.input.surface, part, np.int32(part.size))
        launch(fill_kernel(problem), grid, (_FILL_THREADS,), args)
        convolve(len(part), y[lo : lo + w.chunk])


texture = partial(nchw, family="texture", prepare=_prepare)


def _offer(name: str, slides: bool, summary: str) -> None:
    def kernels(problem: Conv, batch: int) -> tuple[Kernel, ...]:
        planned = tilings(problem, machines.current(), slides)
        return (fill_kernel(problem), *(tiling.kernel for tiling in planned))

    def supports(problem: Conv) -> str | None:
        if refusal(problem) is None and not tilings(problem, machines.current(), slides):
            return "supports a row of coefficients that fits into registers, up to about 30 wide"
        return refusal(problem)

    def run(x: Any, w: Prepared, y: Any, problem: Conv) -> None:
        def convolve(n: int, out: Any) -> None:
            tiling = tiling_for(problem, n, machines.current(), slides)
            args = (w.input.texture, w.coefficients, out, np.int32(n))
            launch(tiling.kernel, (tiling.blocks(n),), (tiling.threads,), args)

        by_parts(x, w, y, problem, convolve)

    fields = {"name": name, "summary": summary, "paper": "after the Tegra X1 slides"}
    texture(kernels=kernels, supports=supports, default=not slides, **fields)(run)


_SLIDES = "texture.slides with tiles and images a block by a cost model, coefficients in sets."
_ALL = "texture.direct with several maps per thread, and channels divided among warps."
_offer("direct", True, _SLIDES)
_offer("split", False, _ALL)
