// One-dimensional Winograd F(4,5) in pairs of halves: 8 neighbouring inputs at the points 0,
// infinity, +-9/16, +-1, +-2 (points.py), whose coefficients fp16 holds exactly. Inputs below 2^10
// stay below 2^14.
#pragma once
#include "gpu/ptx/math.cuh"

namespace winograd {

using ptx::u32;

constexpr int POINTS = 8, OUTPUTS = 4;  // of a tile
constexpr float AT[POINTS] = {0, 0, 0.5625f, -0.5625f, 1, -1, 2, -2};  // [1] stands for infinity

// 2^-8 times a whole number below 2^11, twice.
__device__ __forceinline__ constexpr u32 both(int v256) {
    const u32 sign = v256 < 0 ? 0x8000 : 0;
    u32 fraction = v256 < 0 ? -v256 : v256, exponent = 15 + 2;
    while (fraction < 1024) fraction *= 2, --exponent;
    return (sign | exponent << 10 | (fraction & 1023)) * 0x10001u;
}
// d6 + q1 d4 + q0 d2: neighbours two apart.
template <int Q1, int Q0>
__device__ __forceinline__ u32 quadratic(u32 d2, u32 d4, u32 d6) {
    constexpr u32 q1 = both(Q1), q0 = both(Q0);
    return ptx::multiply_add2(d2, q0, ptx::multiply_add2(d4, q1, d6));
}
template <int A, int Q1, int Q0>
__device__ __forceinline__ void at_pair(const u32 (&d)[POINTS], u32& plus, u32& minus) {
    constexpr u32 a = both(A), minus_a = both(-A);
    const u32 even = quadratic<Q1, Q0>(d[2], d[4], d[6]);
    const u32 odd = quadratic<Q1, Q0>(d[1], d[3], d[5]);
    plus = ptx::multiply_add2(odd, a, even);
    minus = ptx::multiply_add2(odd, minus_a, even);
}
__device__ __forceinline__ void transform(const u32 (&d)[POINTS], u32 (&v)[POINTS]) {
    constexpr u32 last = both(-324);
    v[0] = ptx::multiply_add2(d[0], last, quadratic<-1361, 1429>(d[2], d[4], d[6]));
    v[1] = ptx::multiply_add2(d[1], last, quadratic<-1361, 1429>(d[3], d[5], d[7]));
    at_pair<144, -1280, 1024>(d, v[2], v[3]);
    at_pair<256, -1105, 324>(d, v[4], v[5]);
    at_pair<512, -337, 81>(d, v[6], v[7]);
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

}  // namespace winograd
