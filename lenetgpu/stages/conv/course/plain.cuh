// The report's reads and writes of a convolution, by plain pointers: `__restrict__`, even on a
// function's parameters, lets the compiler take loads of w out of a loop that stores to y.
#pragma once
#include "stages/conv/shape.cuh"

__device__ __forceinline__ float plain_input(const float* x, size_t n, int y, int col, int c) {
    const bool inside = PAD == 0 || (y >= 0 && y < H && col >= 0 && col < W);
    return inside ? x[offset<READS, H, W, CH>(n, y, col, c)] : 0.0f;
}

__device__ __forceinline__ float& plain_output(float* y, size_t n, int oy, int ox, int m) {
    return y[offset<WRITES, OH, OW, M>(n, oy, ox, m)];
}
