// A value of an array as the kernel computes with it: float32, of fewer bits in memory where DTYPE
// says so. Loads are exact, stores go to the nearest, of two as near the even one: what is beyond
// the end is infinity, NaN stays NaN. bfloat16 is the upper half of a float32, moved by integers.
#pragma once
#include "gpu/ptx/half.cuh"

constexpr int FP32 = 0;
constexpr int FP16 = 1;
constexpr int BF16 = 2;

template <int DTYPE>
struct Element {
    using Held = unsigned short;
    static_assert(DTYPE == FP16 || DTYPE == BF16, "unknown dtype");

    static __device__ __forceinline__ float load(Held bits) {
        if (DTYPE == BF16) return __uint_as_float((unsigned)bits << 16);
        const unsigned moved = (bits & 0x7FFFu) << 13;  // 112 less than float32's exponent
        const bool endless = (bits & 0x7C00u) == 0x7C00u;
        const float size = endless ? __uint_as_float(moved | 0x7F800000u)
                                   : __uint_as_float(moved) * 0x1p112f;  // what is denormal too
        return bits & 0x8000u ? -size : size;
    }

    static __device__ __forceinline__ Held store(float value) {
        if (DTYPE == FP16) return half_bits(value);
        const unsigned bits = __float_as_uint(value);
        if (value != value) return Held(bits >> 16 | 0x40u);
        return Held((bits + (0x7FFFu + (bits >> 16 & 1u))) >> 16);
    }
};

template <>
struct Element<FP32> {
    using Held = float;
    static __device__ __forceinline__ float load(Held value) { return value; }
    static __device__ __forceinline__ Held store(float value) { return value; }
};
