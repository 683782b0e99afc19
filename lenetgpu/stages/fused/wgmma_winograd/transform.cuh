// Winograd F(4,5) around wgmma: pairs of fp16 to the points, sums of products back from them.
#pragma once
#include "gpu/ptx/math.cuh"
#include "stages/fused/cuda_cores/winograd.cuh"

// Points as they are multiplied: those of winograd.cuh, infinity (its last) second.
constexpr int ORDER[POINTS] = {0, 7, 1, 2, 3, 4, 5, 6};
constexpr float AT[POINTS] = {0, 0, 1, -1, 2, -2, 0.5f, -0.5f};

// In fp32, rounded once.
__device__ __forceinline__ void transform(const ptx::u32 (&d)[POINTS], ptx::u32 (&v)[POINTS]) {
    float low[POINTS], high[POINTS], low_at[POINTS], high_at[POINTS];
#pragma unroll
    for (int i = 0; i < POINTS; ++i) low[i] = ptx::low_half(d[i]), high[i] = ptx::high_half(d[i]);
    transform_input(low, low_at);
    transform_input(high, high_at);
#pragma unroll
    for (int p = 0; p < POINTS; ++p) v[p] = ptx::half2(low_at[ORDER[p]], high_at[ORDER[p]]);
}

// 2^-2 times a whole number, twice.
__device__ __forceinline__ constexpr ptx::u32 both(int quarters) {
    const ptx::u32 sign = quarters < 0 ? 0x8000 : 0;
    ptx::u32 fraction = quarters < 0 ? -quarters : quarters, exponent = 15 + 8;
    while (fraction < 1024) fraction *= 2, --exponent;
    return (sign | exponent << 10 | (fraction & 1023)) * 0x10001u;
}
// a + C / 4 * b.
template <int C>
__device__ __forceinline__ ptx::u32 add(ptx::u32 a, ptx::u32 b) {
    constexpr ptx::u32 c = both(C);
    return ptx::multiply_add2(b, c, a);
}
template <int A>
__device__ __forceinline__ void at_pair(ptx::u32 even, ptx::u32 odd, ptx::u32& plus,
                                        ptx::u32& minus) {
    plus = add<A>(even, odd), minus = add<-A>(even, odd);
}
// In packed fp16: 22 instructions instead of fp32's 72; the scores' error grows by half.
// Differences first: where pixels are alike they are small and exact, and so is what is made of
// them.
__device__ __forceinline__ void transform_fp16(const ptx::u32 (&d)[POINTS], ptx::u32 (&v)[POINTS]) {
    const ptx::u32 even6 = ptx::subtract2(d[6], d[4]), even2 = ptx::subtract2(d[2], d[4]);
    const ptx::u32 odd5 = ptx::subtract2(d[5], d[3]), odd1 = ptx::subtract2(d[1], d[3]);
    v[0] = add<21>(ptx::subtract2(d[6], d[0]), even2);
    v[1] = add<-21>(ptx::subtract2(d[7], d[1]), odd5);
    at_pair<4>(add<-9>(ptx::add2(even6, even2), d[4]), add<-9>(ptx::add2(odd5, odd1), d[3]), v[2],
               v[3]);
    at_pair<8>(add<1>(even6, even2), add<1>(odd5, odd1), v[4], v[5]);
    at_pair<2>(add<16>(even6, even2), add<16>(odd5, odd1), v[6], v[7]);
}

// Adds the products at a point to the outputs: sums[i] += point^i d. The first point of an output
// starts its sum: point 0 starts output 0, infinity output 3, the third point outputs 1 and 2.
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
