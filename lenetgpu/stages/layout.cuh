// Where element (n, y, x, c) of an (N, H, W, C) activation lies, for each layout.
// QUAD keeps each 2x2 window as a 4x1 column: [n][c][(y/2)*4 + (y%2)*2 + x%2][x/2].
#pragma once

constexpr int NHWC = 0;
constexpr int NCHW = 1;
constexpr int QUAD = 2;

template <int LAYOUT, int ROWS, int COLS, int CHANNELS>
__device__ __forceinline__ size_t offset(size_t n, int y, int x, int c) {
    static_assert(LAYOUT == NHWC || LAYOUT == NCHW || LAYOUT == QUAD, "unknown layout");
    if (LAYOUT == NHWC) return ((n * ROWS + y) * COLS + x) * CHANNELS + c;
    if (LAYOUT == NCHW) return ((n * CHANNELS + c) * ROWS + y) * COLS + x;
    return ((n * CHANNELS + c) * (2 * ROWS) + (y / 2) * 4 + (y % 2) * 2 + x % 2) * (COLS / 2) + x / 2;
}

// Inverse for a linear index within one image.
struct Index {
    int y, x, c;
};

template <int LAYOUT, int ROWS, int COLS, int CHANNELS>
__device__ __forceinline__ Index locate(int i) {
    if (LAYOUT == NHWC) return {i / CHANNELS / COLS, i / CHANNELS % COLS, i % CHANNELS};
    if (LAYOUT == NCHW) return {i / COLS % ROWS, i % COLS, i / COLS / ROWS};
    constexpr int HALF = COLS / 2;
    const int half = i % HALF, row = i / HALF % (2 * ROWS), c = i / HALF / (2 * ROWS);
    return {row / 4 * 2 + row / 2 % 2, half * 2 + row % 2, c};
}
