// The convolution's shape as compile-time constants, from -D CH, H, W, M, R, S, STRIDE, PAD,
// READS, WRITES; and the reads and writes that every convolution kernel shares.
#pragma once
#include "stages/layout.cuh"

constexpr int OH = (H + 2 * PAD - R) / STRIDE + 1;
constexpr int OW = (W + 2 * PAD - S) / STRIDE + 1;
constexpr int PIXELS = OH * OW;
constexpr int K_SIZE = R * S * CH;  // products per output, ordered (r, s, c)
static_assert(OH > 0 && OW > 0, "the filter must fit into the padded image");

__device__ __forceinline__ float input_at(const float* __restrict__ x, size_t n, int y, int col,
                                          int c) {
    if (PAD > 0 && (y < 0 || y >= H || col < 0 || col >= W)) return 0.0f;
    return x[offset<READS, H, W, CH>(n, y, col, c)];
}

__device__ __forceinline__ float& output_at(float* __restrict__ y, size_t n, int oy, int ox,
                                            int m) {
    return y[offset<WRITES, OH, OW, M>(n, oy, ox, m)];
}
