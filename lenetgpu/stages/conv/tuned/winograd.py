"""Winograd's minimal filtering as batched products (Lavin & Gray, arXiv 1509.09308)."""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from typing import Any

from lenetgpu.arrays import Array, cupy, np
from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import images_within
from lenetgpu.problems import Conv
from lenetgpu.stages.conv import nchw
from lenetgpu.stages.conv.tuned import direct
from lenetgpu.stages.conv.tuned import product as products
from lenetgpu.stages.conv.tuned.product import Product, Workspace
from lenetgpu.stages.defines import conv_kernel

_THREADS = 128
# Number of pairs -> points +-a, the dyadic ones with the smallest error.
_PAIRS = {
    1: (Fraction(1),),
    2: (Fraction(3, 4), Fraction(3, 2)),
    3: (Fraction(9, 16), Fraction(1), Fraction(2)),
}
Matrix = tuple[tuple[Fraction, ...], ...]


def _times(a: list[Fraction], root: Fraction) -> list[Fraction]:
    """Return the coefficients, lowest first, of the polynomial `a` times (x - root)."""
    return [s - root * c for s, c in zip([Fraction(0), *a], [*a, Fraction(0)], strict=True)]


@cache
def transforms(outputs: int, side: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return Cook and Toom's (A^T, G, B^T): y = A^T ((G g) * (B^T d)) for `side` elements."""
    count = outputs + side - 1
    points = [Fraction(0)]
    for pair in _PAIRS[(count - 2) // 2]:
        points += [pair, -pair]
    to_output, from_filter, from_input = [], [], []
    for point in points:
        others, scale = [Fraction(1)], Fraction(1)
        for other in points:
            if other != point:
                others, scale = _times(others, other), scale * (point - other)
        from_input.append((*others, *([Fraction(0)] * (count - len(others)))))
        from_filter.append(tuple(point**k / scale for k in range(side)))
    product = [Fraction(1)]
    for point in points:
        product = _times(product, point)
    from_input.append(tuple(product))
    from_filter.append(tuple(Fraction(int(k == side - 1)) for k in range(side)))
    for i in range(outputs):
        to_output.append((*(point**i for point in points), Fraction(int(i == outputs - 1))))
    return tuple(to_output), tuple(from_filter), tuple(from_input)


def _divided(problem: Conv, batch: int, outputs: int) -> tuple[int, Conv, int]:
    """Return the points, the product at one (a pixel per tile), and the images at a time."""
    points = (outputs + problem.R - 1) ** 2
    tiles = blocks_for(problem.OH, outputs) * blocks_for(problem.OW, outputs)
    tiles = 4 * blocks_for(tiles, 4)
    inner = Conv(1, tiles, problem.C, problem.M, 1, 1, reads="NCHW", writes="NCHW")
    return points, inner, images_within(batch, 4 * points * tiles * (problem.C + problem.M))


@cache
def _transform_kernels(problem: Conv, outputs: int) -> tuple[Kernel, Kernel]:
    to_output, _, from_input = transforms(outputs, problem.R)

    def kernel(name: str, matrix: str, values: Matrix) -> Kernel:
        shape = {"OUTPUTS": outputs, "POINTS": outputs + problem.R - 1, "THREADS": _THREADS}
        plain = conv_kernel(__file__, name, problem, **shape)
        rows = ("{" + ",".join(f"{float(value)!r}f" for value in row) + "}" for row in values)
        return replace(plain, defines=(*plain.defines, (matrix, "{" + ",".join(rows) + "}")))

    into = kernel("winograd_input", "FROM_INPUT", from_input)
    return into, kernel("winograd_output", "TO_OUTPUT", to_output)


def longest(outputs: int, problem: Conv) -> int:
    """Return the most products per fp32 sum (0: any); errors grow with it and with the points.

    With 8 points, sums of 32 products exceed the tolerance of 1e-5 in one of 7,000 emulated draws;
    sums of 16 have 0.8 times that error, but not for more than 256 channels.
    """
    return {4: 0, 6: 256, 8: 16 if problem.C <= 256 else 32}[outputs + problem.R - 1]


def plan(problem: Conv, batch: int, outputs: int, machine: Machine | None = None) -> Product:
    """Return the product between the transforms, on `machine` or the current one."""
    points, inner, images = _divided(problem, batch, outputs)
    bound = longest(outputs, problem)
    return products.cheapest(inner, images, machine or machines.current(), points, bound)


def cycles(product: Product, problem: Conv, batch: int, outputs: int, machine: Machine) -> float:
    """Estimate the cycles of both transforms and the product."""
    points, inner, chunk = _divided(problem, batch, outputs)
    maps = problem.C * problem.H * problem.W + problem.M * problem.OH * problem.OW
    moved = 4 * chunk * (points * inner.W * (problem.C + problem.M) + maps)
    once = products.product_cycles(product, inner, chunk, points, machine)
    once += products.transform_cycles(moved, machine)
    return once * blocks_for(batch, chunk)


@dataclass
class State:
    """Transformed filters [point][c][m], workspaces for `chunk` images and the product's plan."""

    filters: Any
    inputs: Any
    products: Any
    product: Product
    space: Workspace
    chunk: int


def transform_filters(w: Array, outputs: int) -> Array:
    """Return filters (R, R, C, M) as (points, C, M rounded up to 4); rounds once, from float64."""
    side, _, channels, maps = w.shape
    g = np.array(transforms(outputs, side)[1], np.float64)
    rows = np.tensordot(g, w.astype(np.float64), axes=(1, 0))
    both = np.tensordot(g, rows, axes=(1, 1)).swapaxes(0, 1)
    transformed = both.reshape(-1, channels, maps).astype(np.float32)
    return np.pad(transformed, ((0, 0), (0, 0), (0, -maps % 4)))


def prepare(
    w: Any, problem: Conv, batch: int, outputs: int, product: Product | None = None
) -> State:
    """Prepare `run` for up to `batch` images at a time; returns with the filters on the device."""
    points, inner, chunk = _divided(problem, batch, outputs)
    product = product or plan(problem, batch, outputs)
    state = State(
        filters=cupy.asarray(transform_filters(w, outputs)),
        inputs=cupy.empty((points, chunk * problem.C * inner.W), cupy.float32),
        products=cupy.empty((points, chunk * problem.M * inner.W), cupy.float32),
        product=product,
        space=Workspace.of(product, inner, chunk, points),
        chunk=chunk,
    )
    cupy.cuda.get_current_stream().synchronize()
    return state


def run(x: Any, w: State, y: Any, problem: Conv, outputs: int) -> None:
    """Transform the inputs, multiply and transform back, in chunks of images."""
    into, out = _transform_kernels(problem, outputs)
    points, inner, _ = _divided(problem, w.chunk, outputs)
    for lo in range(0, len(x), w.chunk):
        images = min(w.chunk, len(x) - lo)
        grid = (blocks_for(images * problem.C * inner.W, _THREADS),)
        launch(into, grid, (_THREADS,), (x[lo:], w.inputs, np.int32(images)), overlap=True)
        w.product.run(inner, w.inputs, w.filters, w.products, w.space, images, points)
        grid = (blocks_for(images * problem.M * inner.W, _THREADS),)
        launch(out, grid, (_THREADS,), (w.products, y[lo:], np.int32(images)), overlap=True)


# Least outputs per image with 8 points, for several channels and for one. Errors are relative to
# the largest output, and exceeded 1e-5 with 128 outputs in one of 20,000 emulated draws. With
# these, the largest error was 8.8e-6 in 40,000 draws of 2 to 48 channels, 8.7e-6 in 2,400 of one.
_LEAST_OUTPUTS, _OF_ONE_CHANNEL = 512, 8192


def refusal(problem: Conv, outputs: int = 2) -> str | None:
    """Return the reason if Winograd's algorithm does not support the problem, else None."""
    few = problem.OH * problem.OW * problem.M
    if problem.R != problem.S or problem.R not in (3, 5) or problem.stride != 1:
        return "supports 3x3 and 5x5 filters with stride 1"
    least = _LEAST_OUTPUTS if problem.C > 1 else _OF_ONE_CHANNEL
    if outputs + problem.R - 1 == 8 and few < least:
        return f"supports 5x5 filters with at least {least} outputs an image, not {few}"
    return direct.refusal(problem)


def kernels(problem: Conv, batch: int, outputs: int) -> tuple[Kernel, ...]:
    """Return the kernels for up to `batch` images."""
    _, inner, _ = _divided(problem, batch, outputs)
    return (*_transform_kernels(problem, outputs), plan(problem, batch, outputs).kernel(inner))


def _offer(outputs: int, summary: str) -> None:
    @nchw(
        family="winograd",
        name=f"f{outputs}",
        summary=summary,
        prepare=partial(prepare, outputs=outputs),
        kernels=partial(kernels, outputs=outputs),
        supports=partial(refusal, outputs=outputs),
        default=outputs == 4,
        paper=f"Lavin & Gray, F({outputs}x{outputs})",
    )
    def compute(x: Any, w: State, y: Any, problem: Conv) -> None:
        run(x, w, y, problem, outputs)


_offer(2, "2x2 outputs from 16 products per channel (3x3) or 36 (5x5).")
_offer(4, "4x4 outputs from 36 products per channel (3x3) or 64 (5x5).")
