"""NumPy emulation of the tensor core plans, from the operands packed for them.

Sums are float32 or float64 where the kernels use fp32: tests compare the operands' rounding. All
functions take balanced tensors (`Weights.balanced`) and return their scores times 2**exponent.
"""

import numpy as np

from lenetgpu.stages.fused import split
from lenetgpu.stages.fused.mma import pack as mma
from lenetgpu.stages.fused.wgmma import fp16_pack, int8_pack
from lenetgpu.stages.fused.wgmma_sparse import pack as sparse_pack
from lenetgpu.stages.fused.wgmma_sparse.prune import pruned
from lenetgpu.stages.fused.wgmma_winograd import fp16_pack as winograd_pack
from lenetgpu.stages.rounding import to_half

NAMES = ("conv1", "conv2", "fc1", "fc2")


def half(x):
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def windows(x):
    """Return (n, H, W, C) as (n, H - 4, W - 4, 5 * 5 * C)."""
    found = np.lib.stride_tricks.sliding_window_view(x, (5, 5), axis=(1, 2))
    return found.transpose(0, 1, 2, 4, 5, 3).reshape(*found.shape[:3], -1)


def convolve(x, filters):
    return windows(x) @ filters.reshape(-1, filters.shape[-1])


def quarters(x):
    """Return the four pixels of each 2x2 window after ReLU."""
    x = np.maximum(x, 0)
    return x[:, ::2, ::2], x[:, 1::2, ::2], x[:, ::2, 1::2], x[:, 1::2, 1::2]


def summed(x):
    a, b, c, d = quarters(x)
    return (a + b) + (c + d)


def columns_of(packed):
    """Return fp16's packed conv1 [K step][half][column][8] as (5, 5, 1, 32) float32."""
    matrix = packed.transpose(0, 1, 3, 2).reshape(32, 4, 2, 8)[:30].reshape(5, 6, 4, 2, 8)
    return matrix[:, :5, :, 0].reshape(5, 5, 1, 32).astype(np.float32)


def pixels(images):
    return images.astype(np.float32) / (256 if images.dtype == np.uint8 else 1)


def fp16_maps(images, packed):
    """Return pool1 as wgmma's fp16 kernels round it: sums rounded to fp16, then added in fp16."""
    x = half(pixels(images)).astype(np.float32)
    sums = convolve(x, columns_of(packed[int(images.dtype == np.uint8)]))
    a, b, c, d = (half(q) for q in quarters(sums))
    return (a + c) + (b + d)


def fp16_conv2(packed):
    return packed.reshape(25, 2, 2, 64, 8).transpose(0, 1, 2, 4, 3).reshape(5, 5, 32, 64)


def fp16_scores(features, fc1, fc2):
    """Return scores of features (n, 1024) in (4, 4, 64) order; rounds fc1's outputs to fp16."""
    packed = fp16_pack.pack_fc1(fc1).transpose(1, 2, 4, 0, 3).reshape(1024, 128)
    ordered = half(features)[:, fp16_pack.feature_order()].astype(np.float32)
    hidden = half(np.maximum(ordered @ packed.astype(np.float32), 0)).astype(np.float32)
    return hidden @ half(fc2).astype(np.float32)


def fp16_features(images, tensors):
    conv1, conv2 = tensors[:2]
    maps = fp16_maps(images, fp16_pack.pack_conv1(conv1)).astype(np.float32)
    sums = convolve(maps, fp16_conv2(fp16_pack.pack_conv2(conv2)).astype(np.float32))
    return np.float32(0.25) * summed(sums)


POINTS = (0, None, 1, -1, 2, -2, 0.5, -0.5)  # None: infinity


def in_fp16(inputs):
    """Return (n, rows, 8, channels) maps with POINTS first, rounded like transform_fp16."""
    d = np.moveaxis(inputs.astype(np.float64), 2, 0)

    def add(a, quarters, b):
        return half(a + quarters / 4 * b).astype(np.float64)

    even6, even2 = add(d[6], -4, d[4]), add(d[2], -4, d[4])
    odd5, odd1 = add(d[5], -4, d[3]), add(d[1], -4, d[3])
    found = [add(add(d[6], -4, d[0]), 21, even2), add(add(d[7], -4, d[1]), -21, odd5)]
    pairs = (
        (add(add(even6, 4, even2), -9, d[4]), 4, add(add(odd5, 4, odd1), -9, d[3])),
        (add(even6, 1, even2), 8, add(odd5, 1, odd1)),
        (add(even6, 16, even2), 2, add(odd5, 16, odd1)),
    )
    for even, quarters, odd in pairs:
        found += [add(even, quarters, odd), add(even, -quarters, odd)]
    return np.stack(found).astype(np.float16)


def by_points(maps, transform, filters, product):
    """Return the maps convolved with `filters` at POINTS, in float32, and summed as pool2 does.

    `transform` returns eight columns of the maps at POINTS; `product` multiplies them by a point's
    filters.
    """
    sums = np.zeros((len(maps), 8, 2, 4, 64), np.float32)
    for tile in range(2):
        at_points = transform(maps[:, :, 4 * tile : 4 * tile + 8])
        for p, point in enumerate(POINTS):
            rows = np.lib.stride_tricks.sliding_window_view(at_points[p], 5, axis=1)
            found = product(rows.transpose(0, 1, 3, 2).reshape(-1, 160), filters[p])
            for output in range(4):
                factor = float(output == 3) if point is None else point**output
                sums[:, :, tile, output] += np.float32(factor) * found.reshape(-1, 8, 64)
    return summed(sums.reshape(len(maps), 8, 8, 64))


def winograd_features(images, tensors):
    """Return features of maps transformed in fp16, with float32 sums of their products."""
    conv1, conv2 = tensors[:2]
    maps = fp16_maps(images, fp16_pack.pack_conv1(conv1)).astype(np.float32)
    filters = winograd_pack.pack_conv2(conv2).transpose(0, 1, 2, 3, 5, 4).reshape(8, 160, 64)
    sums = by_points(maps, in_fp16, filters.astype(np.float32), lambda a, b: np.float32(a) @ b)
    return np.float32(0.25) * sums


def mma_fp16_features(images, tensors):
    """Return features (n, 1024) in (4, 4, 64) order."""
    conv1, conv2 = tensors[:2]
    packed = mma.pack(tensors, 1)
    uint8 = images.dtype == np.uint8
    x = images.astype(np.float32) if uint8 else half(images).astype(np.float32)
    scale = packed.factors.bytes if uint8 else packed.factors.floats
    maps = half(np.float32(2 * scale) * summed(convolve(x, to_half(conv1).astype(np.float32))))
    sums = convolve(maps.astype(np.float32), half(conv2).astype(np.float32))
    features = np.float32(2 * packed.factors.conv2) * summed(sums)
    return features.reshape(len(images), -1)


def cublas_half(images, tensors):
    """Return scores with fp32 activations that are rounded when a product reads them."""
    conv1, conv2, fc1, fc2 = tensors
    x = images.astype(np.float32) / np.float32(255 if images.dtype == np.uint8 else 1)
    for filters in (to_half(conv1), half(conv2)):
        maps = convolve(half(x).astype(np.float32), filters.astype(np.float32))
        x = np.float32(0.25) * summed(maps)
    return fp16_scores(x.reshape(len(images), -1), fc1, fc2)


def byte_maps(images, conv1, largest):
    """Return pool1's bytes as whole numbers in float32, with channels in order."""
    packed = int8_pack.pack_conv1(conv1, largest)
    plane, quad, item = np.meshgrid(np.arange(4), np.arange(4), np.arange(2), indexing="ij")
    order = np.argsort((8 * quad + 2 * plane + item).reshape(-1))
    maps = np.rint(fp16_maps(images, packed).astype(np.float32))[..., order]
    assert maps.max() <= int8_pack.BYTE_MOST, "an image was cut"
    return maps


def byte_features(images, conv1, quantized):
    whole, scales = quantized
    maps = byte_maps(images, conv1, int8_pack.ranges(conv1))
    return scales * summed(convolve(maps, whole.astype(np.float32)))


def int8_features(images, tensors):
    conv1, conv2 = tensors[:2]
    return byte_features(images, conv1, int8_pack.quantize(conv2, int8_pack.ranges(conv1)))


def whole_of_sparse(packed):
    """Return the sparse kernel's packed conv2 as dense filters (5, 5, 32, 64) int8.

    A product's thread t holds 32 index bits for row 16 * (t / 32) + t / 4 % 8, plus 8 if t is
    odd. Of the row's 16 groups of four along K, it holds the lower eight if t / 2 is even, else
    the upper; four bits per group, lowest first.
    """
    held = packed[: 13 * 2048].view(np.int8).reshape(13, 4, 8, 4, 2, 2, 4)
    # step, warp, row, quad, K half, row half, bytes -> step, K half, whole row, K
    kept = held.transpose(0, 4, 1, 5, 2, 3, 6).reshape(13, 2, 64, 8, 2)
    words = packed[13 * 2048 :].view("<u4").reshape(13, 128)
    dense = np.zeros((13, 64, 16, 4), np.int8)
    for thread in range(128):
        row = 16 * (thread // 32) + thread // 4 % 8 + (8 if thread % 2 else 0)
        for four in range(8):
            bits = words[:, thread] >> 4 * four & 15
            low, high = bits & 3, bits >> 2
            assert (low < high).all()
            core = thread // 2 % 2
            at = np.arange(13), row, 8 * core + four
            dense[(*at, low)], dense[(*at, high)] = kept[:, core, row, four].T
    vecs = dense.reshape(13, 64, 4, 16).transpose(0, 2, 3, 1)
    whole = np.zeros((5, 5, 2, 16, 64), np.int8)
    for plane in range(2):
        for line in range(5):
            whole[line, :4, plane] = vecs[6 * plane + line]
        whole[:4, 4, plane] = vecs[6 * plane + 5]
        whole[4, 4, plane] = vecs[12, plane]
    assert not vecs[12, 2:].any()
    return whole.reshape(5, 5, 32, 64)


def sparse_features(images, tensors):
    conv1, conv2 = tensors[:2]
    whole, scales = int8_pack.quantize(pruned(conv1, conv2), int8_pack.ranges(conv1))
    held = whole_of_sparse(sparse_pack.pack_conv2(whole))
    return byte_features(images, conv1, (held, scales))


def three_products(x, w, exponent):
    """Multiply `x` times 2**exponent by scaled `w` as high and low, without low * low."""
    scaled = np.ldexp(x, exponent)
    high = half(scaled)
    low = half(scaled - high).astype(np.float64)
    parts, k = split.parts(w)
    a, b = parts.astype(np.float64)
    high = high.astype(np.float64)
    return np.ldexp(high @ a + high @ b + low @ a, -k - exponent)


def fp16x3(images, tensors, rounds_hidden):
    """Return scores; with `rounds_hidden` (mma.sync) fc1's outputs are split, else fp32 (wgmma)."""
    a1, a2, a3 = split.activation_exponents(tensors)
    conv1, conv2, fc1, fc2 = tensors
    uint8 = images.dtype == np.uint8
    maps = three_products(
        windows(images.astype(np.float64)), conv1.reshape(25, 32), 0 if uint8 else 8
    )
    x = summed(maps) / (4 * (255 if uint8 else 1))
    x = summed(three_products(windows(x), conv2.reshape(800, 64), a1)) / 4
    hidden = np.maximum(three_products(x.reshape(len(images), -1), fc1, a2), 0)
    if rounds_hidden:
        return three_products(hidden, fc2, a3)
    return hidden.astype(np.float32).astype(np.float64) @ fc2


def parts_of(x):
    """Return float32 split into fp16 high and low, as float64."""
    high = half(x)
    return high.astype(np.float64), half(x - high.astype(np.float32)).astype(np.float64)


def cut(x):
    """Truncate float64 to 24 bits, as the tensor cores truncate their sums."""
    return (x.view(np.int64) & -(1 << 29)).view(np.float64)


def chained(pairs):
    """Sum the products of [(A (m, K), B (K, n))], truncated after every 16 of each K."""
    found = np.zeros((len(pairs[0][0]), pairs[0][1].shape[1]))
    for a, b in pairs:
        for k in range(0, len(b), 16):
            found = cut(found + a[:, k : k + 16] @ b[k : k + 16])
    return found


def at_points_in_fp32(inputs):
    """Return (n, rows, 8, channels) maps with POINTS first, rounded like transform_input."""
    d = np.moveaxis(inputs, 2, 0)
    c = np.float32
    found = [(d[6] - d[0]) + c(5.25) * (d[2] - d[4]), (d[7] - d[1]) + c(5.25) * (d[3] - d[5])]
    for six, two, four, point in ((1, 1, -4.25, 1), (1, 0.25, -1.25, 2), (1, 4, -5, 0.5)):
        even, odd = ((c(six) * d[i + 5] + c(two) * d[i + 1]) + c(four) * d[i + 3] for i in (1, 0))
        found += [even + c(point) * odd, even - c(point) * odd]
    return np.stack(found)


def split_maps(images, packed):
    """Return pool1 in float32, at its scale, from conv1's packed high and low."""
    order = np.argsort(winograd_pack.PAIR_ORDER)
    pairs = packed.conv1.transpose(0, 1, 2, 4, 3).reshape(2, 16, 2, 64)[:, order]
    straight = pairs.reshape(2, 2, 2, 8, 64).transpose(0, 1, 2, 4, 3)
    high, low = (columns_of(part).reshape(25, 32).astype(np.float64) for part in straight)
    uint8 = images.dtype == np.uint8
    x = windows(pixels(images) * np.float32(1 if uint8 else 256))
    a, b = parts_of(x.reshape(-1, 25))
    sums = chained([(b, high), (a, low), (a, high)]).reshape(len(x), 24, 24, 32)
    scale = packed.factors.bytes if uint8 else packed.factors.floats
    return np.float32(scale) * summed(sums.astype(np.float32))


def split_winograd_features(images, tensors):
    """Return features at pool2's scale from maps and filters at POINTS as high and low.

    Corrections are added first.
    """

    def product(rows, parts):
        (high, low), (a, b) = parts_of(rows), parts.astype(np.float64)
        return chained([(high, b), (low, a), (high, a)]).astype(np.float32)

    packed = winograd_pack.pack(tensors)
    filters = packed.conv2.transpose(0, 1, 2, 3, 4, 6, 5).reshape(8, 2, 160, 64)
    sums = by_points(split_maps(images, packed), at_points_in_fp32, filters, product)
    return np.float32(packed.factors.conv2) * sums


def wgmma_winograd_fp16x3(images, tensors):
    _, a2, _ = split.activation_exponents(tensors)
    x = np.ldexp(split_winograd_features(images, tensors).astype(np.float64), -a2)
    hidden = np.maximum(three_products(x.reshape(len(images), -1), tensors[2], a2), 0)
    return hidden.astype(np.float32).astype(np.float64) @ tensors[3]


def classified(features):
    """Return a function that classifies a kernel's features with fp16's classifier."""

    def classify(images, tensors):
        return fp16_scores(features(images, tensors).reshape(len(images), -1), *tensors[2:])

    return classify


# Plan -> its precision, and a function of images (n, 28, 28, 1) and balanced tensors that returns
# the scores (n, 10)
PLANS = {
    "fp16": ("fp16", classified(fp16_features)),
    "fp16_winograd": ("fp16w", classified(winograd_features)),
    "mma_fp16": ("fp16", classified(mma_fp16_features)),
    "mma_winograd": ("fp16w", classified(winograd_features)),
    "half": ("fp16", cublas_half),
    "int8": ("int8", classified(int8_features)),
    "int8_sparse": ("int8s", classified(sparse_features)),
    "fp16x3": ("fp16x3", lambda images, tensors: fp16x3(images, tensors, False)),
    "fp16x3_winograd": ("fp16x3", wgmma_winograd_fp16x3),
    "mma_fp16x3": ("fp16x3", lambda images, tensors: fp16x3(images, tensors, True)),
}


def scores(plan, images, weights):
    """Return the float32 scores of `plan` for `weights`."""
    return unscaled(PLANS[plan][1], images, weights)


def unscaled(plan, images, weights):
    balanced = weights.balanced
    found = plan(images, [balanced[name] for name in NAMES])
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(found.astype(np.float32), balanced.exponent)
