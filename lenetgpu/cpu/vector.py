"""LLVM vectors inside Numba: how wide they are here, and what is emitted of them.

Numba's own vectoriser keeps no tile in registers, so the kernels of this folder are emitted.
Addresses are 64-bit integers, arrays float32. Importing this module imports Numba.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.extending import intrinsic

FLOAT = 4
f32, i64 = ir.FloatType(), ir.IntType(64)


def host_features() -> set[str]:
    """What the processor that Numba compiles for can: this one, or NUMBA_CPU_FEATURES."""
    asked: str | None = vars(config)["CPU_FEATURES"]
    if asked is not None:
        return {word[1:] for word in asked.split(",") if word.startswith("+")}
    return {name for name, there in llvm.get_host_cpu_features().items() if there}


def tile_shape(features: set[str]) -> tuple[int, int, int]:
    """(vector width, vectors, pixels) whose sums and operands fill the vector registers."""
    if "avx512f" in features:
        return 16, 2, 8
    if "avx" in features:
        return 8, 2, 4
    return 4, 2, 4


WIDTH, VECTORS, PIXELS = tile_shape(host_features())
CHANNELS = WIDTH * VECTORS
VECTOR_BYTES = FLOAT * WIDTH


class Vectors:
    """Emits at a builder's place; a vector is WIDTH floats, an address an LLVM i64."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.type = ir.VectorType(f32, WIDTH)
        self.zero = ir.Constant(self.type, None)
        declare: Any = cgutils.get_or_insert_function
        kind = ir.FunctionType(self.type, [self.type] * 3)
        # a fused multiply-add where the processor has one
        self._fma = declare(builder.module, kind, f"llvm.fmuladd.v{WIDTH}f32")

    def at(self, base: Any, *terms: tuple[Any, Any]) -> Any:
        """`base` plus the products of `terms`, (count, bytes) each; numbers are Python's or i64."""
        for count, size in terms:
            both = isinstance(count, int) and isinstance(size, int)
            step = self.number(count * size) if both else self._product(count, size)
            base = self.builder.add(base, step)
        return base

    def number(self, number: Any) -> Any:
        """A Python integer as an i64; an i64 as it is."""
        return ir.Constant(i64, number) if isinstance(number, int) else number

    def _product(self, count: Any, size: Any) -> Any:
        return self.builder.mul(self.number(count), self.number(size))

    def slots(self, count: int) -> list[Any]:
        """`count` vectors of the stack, that the compiler keeps in registers where it can."""
        allocate: Any = cgutils.alloca_once
        return [allocate(self.builder, self.type) for _ in range(count)]

    def load(self, address: Any) -> Any:
        """The vector at `address`."""
        pointer = self.builder.inttoptr(address, self.type.as_pointer())
        return self.builder.load(pointer, align=FLOAT)

    def store(self, vector: Any, address: Any) -> None:
        """Write `vector` to `address`."""
        pointer = self.builder.inttoptr(address, self.type.as_pointer())
        self.builder.store(vector, pointer, align=FLOAT)

    def bytes(self, address: Any) -> Any:
        """The WIDTH bytes at `address`, as floats."""
        kind = ir.VectorType(ir.IntType(8), WIDTH)
        pointer = self.builder.inttoptr(address, kind.as_pointer())
        return self.builder.uitofp(self.builder.load(pointer, align=1), self.type)

    def spread(self, address: Any) -> Any:
        """The float at `address` in every lane."""
        pointer = self.builder.inttoptr(address, f32.as_pointer())
        nothing = ir.Constant(self.type, ir.Undefined)
        first = ir.Constant(ir.IntType(32), 0)
        lane = self.builder.insert_element(nothing, self.builder.load(pointer, align=FLOAT), first)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), None)
        return self.builder.shuffle_vector(lane, nothing, everywhere)

    def all(self, value: float) -> Any:
        """`value` in every lane."""
        return ir.Constant(self.type, [value] * WIDTH)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c; a Python number stands for all lanes, and 1 for no product."""
        if a == 1:
            return self.add(b, c)
        if a == -1:
            return self.subtract(c, b)
        a = self.all(a) if isinstance(a, float | int) else a
        return self.builder.call(self._fma, [a, b, c])

    def add(self, a: Any, b: Any) -> Any:
        """a + b."""
        return self.builder.fadd(a, b)

    def subtract(self, a: Any, b: Any) -> Any:
        """a - b."""
        return self.builder.fsub(a, b)

    def scaled(self, a: float, b: Any) -> Any:
        """a * b."""
        return b if a == 1 else self.builder.fmul(self.all(a), b)

    def rectified(self, a: Any) -> Any:
        """max(a, 0), NaN where a is."""
        negative = self.builder.fcmp_ordered("<", a, self.zero)
        return self.builder.select(negative, self.zero, a)

    def loop(self, count: Any) -> Any:
        """A context that repeats what is emitted in it; its `index` counts from 0."""
        emitted: Any = cgutils.for_range(self.builder, self.number(count))
        return emitted


def mean(v: Vectors, four: list[Any]) -> Any:
    """The mean of four vectors' ReLU."""
    a, b, c, d = map(v.rectified, four)
    return v.scaled(0.25, v.add(v.add(a, b), v.add(c, d)))


def kernel(emit: Any) -> Any:
    """An intrinsic for compiled code: of a tuple of 64-bit integers, `emit(vectors, *them)`."""

    @intrinsic  # type: ignore[misc, untyped-decorator, unused-ignore]
    def emitted(typingctx, arguments):  # type: ignore[no-untyped-def]
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            unpack: Any = cgutils.unpack_tuple
            emit(Vectors(builder), *unpack(builder, args[0]))
            return context.get_dummy_value()

        of: Any = types.UniTuple
        return types.void(of(types.int64, len(arguments))), codegen

    return emitted
