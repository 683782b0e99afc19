// Winograd F(4,5) around wgmma: pairs of halves to the points, sums of products back from them.
#pragma once
#include "gpu/ptx/math.cuh"
#include "stages/fused/cuda_cores/winograd.cuh"

// Points as they are multiplied: those of winograd.cuh, infinity (its last) second.
constexpr int ORDER[POINTS] = {0, 7, 1, 2, 3, 4, 5, 6};
constexpr float AT[POINTS] = {0, 0, 1, -1, 2, -2, 0.5f, -0.5f};

// In fp32, rounded once: in halves throughout the scores are off by half as much again.
__device__ __forceinline__ void transform(const ptx::u32 (&d)[POINTS], ptx::u32 (&v)[POINTS]) {
    float low[POINTS], high[POINTS], low_at[POINTS], high_at[POINTS];
#pragma unroll
    for (int i = 0; i < POINTS; ++i) low[i] = ptx::low_half(d[i]), high[i] = ptx::high_half(d[i]);
    transform_input(low, low_at);
    transform_input(high, high_at);
#pragma unroll
    for (int p = 0; p < POINTS; ++p) v[p] = ptx::half2(low_at[ORDER[p]], high_at[ORDER[p]]);
}

// Adds the products at a point to the outputs: sums[i] += point^i d. The first point that an output
// meets begins it: point 0 begins output 0, infinity output 3, the third point outputs 1 and 2.
template <int POINT, int SIZE>
__device__ __forceinline__ void add_point(float (&sums)[OUTPUTS][SIZE], const float (&d)[SIZE]) {
    constexpr float a = AT[POINT];
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        if constexpr (POINT == 0) {
            sums[0][i] = d[i];
        } else if constexpr (POINT == 1) {
            sums[3][i] = d[i];
        } else {
            sums[0][i] += d[i];
            sums[1][i] = POINT == 2 ? a * d[i] : fmaf(a, d[i], sums[1][i]);
            sums[2][i] = POINT == 2 ? a * a * d[i] : fmaf(a * a, d[i], sums[2][i]);
            sums[3][i] = fmaf(a * a * a, d[i], sums[3][i]);
        }
    }
}
