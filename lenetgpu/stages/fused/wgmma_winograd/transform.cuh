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
// a + C / 256 * b.
template <int C>
__device__ __forceinline__ u32 add(u32 a, u32 b) {
    constexpr u32 c = both(C);
    return ptx::multiply_add2(b, c, a);
}
template <int A>
__device__ __forceinline__ void at_pair(u32 even, u32 odd, u32& plus, u32& minus) {
    plus = add<A>(even, odd), minus = add<-A>(even, odd);
}
// By differences of inputs two apart: where pixels are alike these are small and exact, and so is
// what is made of them. With N = x (x^2 - 81/256) (x^2 - 1) (x^2 - 4), a point's row is N / (x - p).
__device__ __forceinline__ void transform(const u32 (&d)[POINTS], u32 (&v)[POINTS]) {
    const u32 even6 = ptx::subtract2(d[6], d[4]), even2 = ptx::subtract2(d[2], d[4]);
    const u32 odd5 = ptx::subtract2(d[5], d[3]), odd1 = ptx::subtract2(d[1], d[3]);
    v[0] = add<324>(add<1105>(even6, even2), ptx::subtract2(d[2], d[0]));
    v[1] = add<-324>(add<-1105>(ptx::subtract2(d[7], d[5]), odd5), odd1);
    at_pair<144>(add<1024>(even6, even2), add<1024>(odd5, odd1), v[2], v[3]);
    at_pair<256>(add<-525>(add<324>(even6, even2), d[4]), add<-525>(add<324>(odd5, odd1), d[3]),
                 v[4], v[5]);
    at_pair<512>(add<81>(even6, even2), add<81>(odd5, odd1), v[6], v[7]);
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
