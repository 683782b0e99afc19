"""`lenetgpu.conv2d` and `prepare`: any array, any parameters, against float64."""

import numpy as np
import pytest

from lenetgpu import conv2d, prepare
from lenetgpu.check.judge import TOLERANCE
from lenetgpu.layouts import narrowed
from lenetgpu.problems import Conv
from lenetgpu.stages.reference import conv_reference

GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(params=["cpu", GPU])
def arrays(request):
    return np if request.param == "cpu" else pytest.importorskip("cupy")


def drawn(rng, n=2, least=6):
    """Return images, filters, a bias, and keywords of `conv2d`, in float32 on the host."""
    groups = int(rng.choice([1, 1, 2, 4]))
    channels, maps = groups * int(rng.integers(1, 9)), groups * int(rng.integers(1, 9))
    rows, columns, high, wide = (
        int(number) for number in rng.integers((1, 1, least, least), 13)[:4]
    )
    sides = rng.integers(0, 3, 4).reshape(2, 2).tolist()
    named = {"stride": tuple(rng.integers(1, 3, 2).tolist()), "padding": tuple(map(tuple, sides)),
             "dilation": tuple(rng.integers(1, 3, 2).tolist()), "groups": groups,
             "relu": bool(rng.integers(2))}  # fmt: skip
    rows, columns = min(rows, 3), min(columns, 3)
    x = rng.standard_normal((n, channels, high, wide), np.float32)
    w = rng.standard_normal((maps, channels // groups, rows, columns), np.float32)
    return x, w, rng.standard_normal(maps, np.float32), named


def expected(x, w, bias, add, stride, padding, dilation, groups, relu):
    """Return the result in float64, (N, M, OH, OW)."""
    (above, below), (left, right) = padding
    _, channels, high, wide = x.shape
    problem = Conv(
        high, wide, channels, len(w), *w.shape[2:], stride[0], above, strides=stride,
        pads=(above, left, below, right), dilation=dilation, groups=groups,
    )  # fmt: skip
    y = conv_reference(x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), problem)
    y = y.transpose(0, 3, 1, 2) + (0 if bias is None else bias[:, None, None])
    y = y + (0 if add is None else add)
    return np.maximum(y, 0) if relu else y


def channels_last(arrays, x):
    return arrays.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def on_host(array):
    return array.get() if hasattr(array, "get") else array


def test_any_parameters_layout_and_call(arrays, rng):
    for turn in range(40 if arrays is np else 20):
        x, w, bias, named = drawn(rng)
        bias = bias if turn % 2 else None
        add = rng.standard_normal(expected(x, w, bias, None, **named).shape).astype("f")
        add = add if turn % 3 == 0 else None
        right = expected(x, w, bias, add, **named)
        ready = prepare(w, bias, **named)
        more = None if add is None else arrays.asarray(add)
        given = arrays.asarray(x)
        for held in (given, channels_last(arrays, given), arrays.asarray(x[:, ::-1])[:, ::-1]):
            for _ in range(3):  # launches are recorded at the first call, repeated on new arrays
                found = on_host(ready(held.copy(order="K"), more))
                np.testing.assert_allclose(found, right, atol=TOLERANCE["fp32"] * abs(right).max())
        out = arrays.full(right.shape, np.nan, "f")
        weights = arrays.asarray(w), None if bias is None else arrays.asarray(bias)
        assert conv2d(given, *weights, **named, add=more, out=out) is out
        np.testing.assert_array_equal(on_host(out), on_host(ready(given, more)))


@pytest.mark.parametrize("shape", [(64, 64, 3), (3, 32, 5), (96, 40, 1)])
def test_common_shapes(arrays, rng, shape):
    """Fast kernels where the GPU has them: bias, residual and ReLU in or after the kernel."""
    channels, maps, side = shape
    x = rng.standard_normal((4, channels, 20, 17), np.float32)
    w = rng.standard_normal((maps, channels, side, side), np.float32)
    named = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    bias = rng.standard_normal(maps, np.float32)
    add = rng.standard_normal(expected(x, w, None, None, **named, relu=False).shape).astype("f")
    for relu, more in ((True, None), (True, add), (False, add)):
        ready, right = prepare(w, bias, padding=1, relu=relu), None
        right = expected(x, w, bias, more, **named, relu=relu)
        for held in (arrays.asarray(x), channels_last(arrays, arrays.asarray(x))):
            found = on_host(ready(held, None if more is None else arrays.asarray(more)))
            np.testing.assert_allclose(found, right, atol=TOLERANCE["fp32"] * abs(right).max())


def test_results_of_empty_batches_and_half_floats(arrays, rng):
    x, w, bias, named = drawn(rng)
    assert conv2d(arrays.asarray(x[:0]), arrays.asarray(w), **named).shape[0] == 0
    halves = [narrowed(array, "fp16") for array in (x, w, bias)]
    right = expected(*(half.astype("f") for half in halves), None, **named)
    found = conv2d(*map(arrays.asarray, halves), **named)
    assert found.dtype == np.float16
    np.testing.assert_allclose(on_host(found), right, rtol=2**-10, atol=1e-5 * abs(right).max())


X, W = np.zeros((2, 3, 8, 8), np.float32), np.zeros((4, 3, 3, 3), np.float32)
OUT = np.zeros((2, 4, 6, 12), np.float32)
REFUSED = [
    (ValueError, r"x: expected shape \(N, 3, H, W\), found \(3, 8, 8\)", lambda: conv2d(X[0], W)),
    (TypeError, "w: expected float32, float16", lambda: conv2d(X, W.astype(int))),
    (TypeError, "x: expected float16 like the filters", lambda: conv2d(X, W.astype("e"))),
    (ValueError, "stride: expected at least 1, found 0", lambda: conv2d(X, W, stride=0)),
    (TypeError, "stride: expected a whole number, found 1.5", lambda: conv2d(X, W, stride=1.5)),
    (ValueError, "padding: expected a number or", lambda: conv2d(X, W, padding=(1, 2, 3))),
    (ValueError, "w: expected filters in 3 groups, found 4", lambda: conv2d(X, W, groups=3)),
    (ValueError, "bias: expected shape", lambda: conv2d(X, W, X[0, 0, 0])),
    (ValueError, "add: expected shape", lambda: conv2d(X, W, add=X)),
    (ValueError, "padded maps of at least 3 x 3", lambda: conv2d(X[:, :, :2], W)),
    (TypeError, "x: expected an array, found list", lambda: conv2d([[1.0]], W)),
    (ValueError, "out: expected a contiguous", lambda: conv2d(X, W, out=OUT[..., ::2])),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "words", "call"), REFUSED, ids=[words for _, words, _ in REFUSED])
def test_bad_input_is_refused(kind, words, call):
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize("offset", [0, 1])
def test_out_may_be_unaligned_or_an_input(arrays, rng, offset):
    x = arrays.asarray(rng.standard_normal((2, 5, 6, 4), np.float32)).transpose(0, 3, 1, 2)
    w = rng.standard_normal((4, 4, 3, 3), np.float32)
    w, last = arrays.asarray(w), arrays.empty(x.size + offset, np.float32)[offset:]
    out = last.reshape(2, 5, 6, 4).transpose(0, 3, 1, 2)
    plain, added = conv2d(x, w, padding=1), conv2d(x, w, padding=1, add=x)
    assert conv2d(x, w, padding=1, out=out) is out and abs(out - plain).max() < 1e-5
    out[...] = x
    assert abs(conv2d(x, w, padding=1, add=out, out=out) - added).max() < 1e-5
    out[...] = x
    assert abs(conv2d(out, w, padding=1, out=out) - plain).max() < 1e-5
