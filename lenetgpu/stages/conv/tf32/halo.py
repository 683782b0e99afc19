"""Three TF32 products by wgmma for few channels, from input tiles in shared memory."""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from math import gcd

from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import blocks_for
from lenetgpu.gpu.machines import WARP, Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor.product import FIT, HOPPER
from lenetgpu.stages.conv.tf32.one_launch import CHUNK, FLOAT, TF32_FIT, VEC, OneLaunch, chunks

_ROWS = 64  # outputs per filter and warpgroup
_WIDTH = 64
_CONSUMERS = 4  # warpgroups
_WARPGROUP = 128
_BARRIER_BYTES = 16  # two barriers per stage: full and empty
_HELD_BARRIER = 8  # bytes: one more, for filters held
_STAGES = 8
_LEAST_STAGES = 2
_CHANNELS = 16
_BANKS = 32
_BANK_BYTES = 4 * _BANKS  # of shared memory per clock
# An estimate: an H100 took 1.2 to 1.8 times the predicted time (docs/convolutions.md).
_BUSY = 0.9  # fraction of the tensor cores' rate that alternating warpgroups reach


@dataclass(frozen=True)
class Product(OneLaunch):
    """A convolution whose warpgroups compute _ROWS x _WIDTH sums from an input tile each."""

    width: int = _WIDTH
    rows: int = _ROWS
    threads: int = (_CONSUMERS + 1) * _WARPGROUP
    most: int = _STAGES

    def __str__(self) -> str:
        tile = f"{_ROWS} outputs x {_WIDTH} filters a warpgroup, {_CONSUMERS} of a block in turn"
        return f"{tile}, inputs of a tile in shared memory, one launch"

    @property
    def supported(self) -> bool:
        """True if there are few channels, and filters and input tiles fit shared memory."""
        few = self.across <= machines.current().multiprocessors and self.problem.C <= _CHANNELS
        fits = self._always_bytes < machines.SM_90_BLOCK_BYTES
        return few and fits and self.stages >= _LEAST_STAGES

    @property
    def _column(self) -> int:
        return self.problem.C if self.problem.reads == "NHWC" else 1

    @property
    def _line(self) -> int:
        return self.problem.W * self._column

    @property
    def wide(self) -> bool:
        """True if inputs are copied four floats at a time, neighbours in a row."""
        return self._line % VEC == 0

    @property
    def tile_rows(self) -> int:
        """Most rows of consecutive padded images that a tile's outputs read."""
        p = self.problem
        steps = (p.OW - gcd(p.OW, _ROWS) + _ROWS - 1) // p.OW
        separate = p.OH * p.OW % _ROWS == 0  # no tile spans two images
        images = 0 if separate else (steps + (p.OH - 1 if p.stride < p.R else 0)) // p.OH
        return steps * p.stride + p.R + images * (p.R - p.stride)

    @property
    def _bytes(self) -> int:
        floats = self.problem.C // self._column * self.tile_rows * _pitch(self)
        return FLOAT * VEC * blocks_for(floats, VEC)

    @property
    def _always_bytes(self) -> int:
        filters = chunks(self.problem) * (self.filter_bytes + FLOAT * CHUNK)
        return filters + FLOAT * self.width + _HELD_BARRIER

    @property
    def stages(self) -> int:
        """Input tiles that fit shared memory next to all filters, at most `most`."""
        capacity = machines.SM_90_BLOCK_BYTES - self._always_bytes
        return min(self.most, capacity // (self._bytes + _BARRIER_BYTES))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory per block in bytes."""
        return self.stages * (self._bytes + _BARRIER_BYTES) + self._always_bytes

    def kernel(self) -> Kernel:
        """Return the kernel `tf32_halo`."""
        sizes = {"BN": self.width, "TILE_ROWS": self.tile_rows, "PITCH": _pitch(self)}
        return self.built(__file__, HOPPER, STAGES=self.stages, **sizes)

    def grid(self, images: int) -> int:
        """Return the number of persistent blocks, each with the same filters for all its tiles."""
        most = machines.current().multiprocessors
        return min(self.tiles(images), most - most % self.across)

    def cycles(self, images: int, machine: Machine) -> float:
        """Estimate the cycles of a run of `images` images: a tile's slowest stage, or memory."""
        deep = chunks(self.problem)
        product = 3 * _ROWS * self.width * CHUNK / TF32_FIT.rate
        read = _ROWS * CHUNK / WARP * wavefronts(self.problem, _pitch(self))
        filters = 1.5 * self.filter_bytes / _BANK_BYTES  # high parts are read twice
        stored = TF32_FIT.filter * self.width / 2
        alone = deep * (product + TF32_FIT.chunk) + TF32_FIT.tile + stored
        tile = max(
            deep * product / _BUSY,
            deep * (read + filters),
            stored,
            *self._copied,
            alone / min(_CONSUMERS, self.stages),
        )
        blocks = machine.multiprocessors - machine.multiprocessors % self.across
        busiest = blocks_for(self.tiles(images), blocks)
        rate = TF32_FIT.memory_share * machine.bytes_per_clock
        least = images * self.image_bytes() / rate
        return max(max(alone, busiest * tile) / FIT.clock, least) + TF32_FIT.launch

    @property
    def _copied(self) -> tuple[float, float]:
        """Clocks of a tile's copies and of its bytes, averaged over tiles of one and more rows."""
        p, apart = self.problem, gcd(self.problem.OW, _ROWS)
        alone = max(0, (p.OW - _ROWS) // apart + 1) * apart / p.OW
        once, each = (VEC, TF32_FIT.wide_copies) if self.wide else (1, TF32_FIT.copies)
        reach = (_ROWS - 1) * p.stride + p.S
        one, two = (min(p.W, n) * self._column for n in (reach, reach + p.S))
        side = min(WARP, 1 << (blocks_for(self._line, once) - 1).bit_length())
        several = two if p.OW >= _ROWS else self._line
        copies = moved = 0.0
        for share, rows, floats in ((alone, p.R, one), (1 - alone, self.tile_rows, several)):
            lines = rows * (p.C // self._column)
            turns = blocks_for(lines * side, WARP) * blocks_for(blocks_for(floats, once), side)
            copies += share * each * turns
            moved += share * FLOAT * lines * floats / TF32_FIT.cache_rate
        return copies, moved


def _offset(p: Conv, pitch: int, rows: int, k: int) -> int:
    """Return the offset, from an output's first input in the input tile, of index `k` of K."""
    if p.reads == "NHWC":
        rs, channel = divmod(k, p.C)
        return rs // p.S * pitch + rs % p.S * p.C + channel
    channel, rs = divmod(k, p.R * p.S)
    return (channel * rows + rs // p.S) * pitch + rs % p.S


@cache
def wavefronts(p: Conv, pitch: int) -> float:
    """Return the shared memory wavefronts per warp load, averaged over a tile's first loads."""
    rows = Product(p).tile_rows
    column = p.C if p.reads == "NHWC" else 1
    outputs = range(0, 16, 2) if p.writes == "NCHW" else range(8)
    own = [(m // p.OW * pitch + m % p.OW * column) * p.stride for m in outputs]
    offsets = [_offset(p, pitch, rows, k) for k in range(p.gemm_k)]
    offsets += [0] * (-p.gemm_k % CHUNK)
    turns = 0
    for i in range(0, len(offsets), 4):
        addresses = {offset + at for offset in offsets[i : i + 4] for at in own}
        turns += max(Counter(address % _BANKS for address in addresses).values())
    return 4 * turns / len(offsets)


@cache
def _best_pitch(problem: Conv, least: int) -> int:
    pitches = range(least, least + _BANKS, VEC)
    return min(pitches, key=lambda pitch: (wavefronts(problem, pitch), pitch))


def _pitch(product: Product) -> int:
    """Return the floats between rows of an input tile, with the fewest bank conflicts."""
    p, column = product.problem, product._column
    left = VEC * blocks_for(p.pad * column, VEC)
    right = max(0, (p.OW - 1) * p.stride + p.S - p.pad - p.W) * column
    once = VEC if product.wide else 1
    return _best_pitch(p, once * blocks_for(left + product._line + right, once))
