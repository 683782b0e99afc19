"""Emitter of LLVM IR with vectors of this processor's width.

No compiler available from Python keeps a tile in registers. Addresses and counts are 64-bit
integers, arrays float32. Importing this module imports llvmlite.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

FLOAT = 4
f32, i64 = ir.FloatType(), ir.IntType(64)


def processor() -> tuple[str, str]:
    """Return LLVM's name and features of the processor to compile for, by default this one.

    NUMBA_CPU_NAME and NUMBA_CPU_FEATURES, which Numba reads too, select another.
    """
    name = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES")
    with suppress(RuntimeError):  # LLVM does not know the features of every processor
        features = features or llvm.get_host_cpu_features().flatten()
    return name, features or ""


# Floats of a vector; vectors and pixels of a tile, whose sums and operands fill the registers.
WIDTH, VECTORS, PIXELS = 4, 2, 4
if "+avx" in processor()[1].split(","):
    WIDTH = 8
if "+avx512f" in processor()[1].split(","):
    WIDTH, PIXELS = 16, 8
CHANNELS = WIDTH * VECTORS
VECTOR_BYTES = FLOAT * WIDTH


class Vectors:
    """Emitter at a builder's position; a vector is WIDTH floats, an address an LLVM i64."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.type = ir.VectorType(f32, WIDTH)
        self.zero = ir.Constant(self.type, None)
        # a fused multiply-add where the processor has one
        kind = ir.FunctionType(self.type, [self.type] * 3)
        self._fma = ir.Function(builder.module, kind, f"llvm.fmuladd.v{WIDTH}f32")

    def at(self, base: Any, *terms: tuple[Any, Any]) -> Any:
        """Return `base` plus the products of `terms`, (count, bytes) each, integers or i64."""
        for count, size in terms:
            both = isinstance(count, int) and isinstance(size, int)
            step = self.number(count * size) if both else self.product(count, size)
            base = self.builder.add(base, step)
        return base

    def number(self, number: Any) -> Any:
        """Return a Python integer as an i64; an i64 is returned unchanged."""
        return ir.Constant(i64, number) if isinstance(number, int) else number

    def slots(self, count: int) -> list[Any]:
        """Allocate `count` vectors on the stack; the compiler keeps them in registers if it can."""
        with self.builder.goto_entry_block():
            return [self.builder.alloca(self.type) for _ in range(count)]

    def pointer(self, address: Any, kind: Any = f32) -> Any:
        """Return `address` as a pointer to `kind`."""
        return self.builder.inttoptr(address, kind.as_pointer())

    def load(self, address: Any) -> Any:
        """Load the vector at `address`."""
        return self.builder.load(self.pointer(address, self.type), align=FLOAT)

    def store(self, vector: Any, address: Any) -> None:
        """Write `vector` to `address`."""
        self.builder.store(vector, self.pointer(address, self.type), align=FLOAT)

    def bytes(self, address: Any) -> Any:
        """Load the WIDTH bytes at `address` as floats."""
        kind = ir.VectorType(ir.IntType(8), WIDTH)
        return self.builder.uitofp(
            self.builder.load(self.pointer(address, kind), align=1), self.type
        )

    def spread(self, address: Any) -> Any:
        """Broadcast the float at `address` to every lane."""
        nothing = ir.Constant(self.type, ir.Undefined)
        first = ir.Constant(ir.IntType(32), 0)
        value = self.builder.load(self.pointer(address), align=FLOAT)
        lane = self.builder.insert_element(nothing, value, first)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), None)
        return self.builder.shuffle_vector(lane, nothing, everywhere)

    def all(self, value: float) -> Any:
        """Broadcast the constant `value` to every lane."""
        return ir.Constant(self.type, [value] * WIDTH)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Emit a * b + c; a number `a` stands for all lanes, and 1 or -1 needs no product."""
        if a == 1:
            return self.add(b, c)
        if a == -1:
            return self.builder.fsub(c, b)
        a = self.all(a) if isinstance(a, float | int) else a
        return self.builder.call(self._fma, [a, b, c])

    def add(self, a: Any, b: Any) -> Any:
        """Emit a + b."""
        return self.builder.fadd(a, b)

    def scaled(self, a: float, b: Any) -> Any:
        """Emit a * b."""
        return b if a == 1 else self.builder.fmul(self.all(a), b)

    def bounded(self, a: Any, floor: Any) -> Any:
        """Emit max(a, floor), NaN where `a` is NaN."""
        return self.builder.select(self.builder.fcmp_ordered("<", a, floor), floor, a)

    @contextmanager
    def steps(self, low: Any, high: Any, step: int) -> Iterator[Any]:
        """Repeat the code emitted inside for low, low + step, ... below high; yield the index."""
        builder = self.builder
        before = builder.block
        head, body, after = (builder.append_basic_block() for _ in range(3))
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(i64)
        index.add_incoming(self.number(low), before)
        builder.cbranch(builder.icmp_signed("<", index, self.number(high)), body, after)
        builder.position_at_end(body)
        yield index
        index.add_incoming(builder.add(index, self.number(step)), builder.block)
        builder.branch(head)
        builder.position_at_end(after)

    def loop(self, count: Any) -> Any:
        """Return `steps` of 1 from 0 up to `count`."""
        return self.steps(0, count, 1)

    def least(self, a: Any, b: Any) -> Any:
        """Return the smaller of two integers."""
        first, second = self.number(a), self.number(b)
        return self.builder.select(self.builder.icmp_signed("<", first, second), first, second)

    def product(self, first: Any, *others: Any) -> Any:
        """Return the product of integers, Python's or i64."""
        product = self.number(first)
        for other in others:
            product = self.builder.mul(product, self.number(other))
        return product


def mean(v: Vectors, four: list[Any]) -> Any:
    """Return the mean of four vectors after ReLU."""
    a, b, c, d = (v.bounded(value, v.zero) for value in four)
    return v.scaled(0.25, v.add(v.add(a, b), v.add(c, d)))
