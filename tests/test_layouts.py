import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lenetgpu.layouts import MAP_LAYOUTS, equivalent, from_nhwc, physical_shape, to_nhwc


@given(
    n=st.integers(1, 3),
    h=st.integers(1, 5),
    w=st.integers(1, 5),
    c=st.integers(1, 6),
    layout=st.sampled_from(MAP_LAYOUTS),
)
def test_layout_round_trip(n, h, w, c, layout):
    h, w = 2 * h, 2 * w
    x = np.arange(n * h * w * c).reshape(n, h, w, c)
    held = from_nhwc(x, layout)
    assert held.shape == physical_shape(layout, n, (h, w, c))
    np.testing.assert_array_equal(to_nhwc(held, layout, (h, w, c)), x)


def test_quad_layout_matches_table_10():
    assert physical_shape("QUAD", 3, (24, 24, 32)) == (3, 32, 48, 12)
    assert physical_shape("QUAD", 3, (8, 8, 64)) == (3, 64, 16, 4)
    x = np.arange(16).reshape(1, 4, 4, 1)
    expected = [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert from_nhwc(x, "QUAD")[0, 0].tolist() == expected


@given(
    st.sampled_from([*MAP_LAYOUTS, "NC"]),
    st.sampled_from([*MAP_LAYOUTS, "NC"]),
    st.sampled_from([(4, 4, 1), (1, 1, 5), (4, 6, 3)]),
)
def test_equivalent_layouts_have_the_same_bytes(a, b, shape):
    if "QUAD" in (a, b) and shape[0] % 2:
        return
    x = np.arange(2 * np.prod(shape)).reshape(2, *shape)
    same = from_nhwc(x, a).ravel().tolist() == from_nhwc(x, b).ravel().tolist()
    if equivalent(a, b, shape):
        assert same
    elif shape == (4, 6, 3):
        assert not same
