// Both ends of a convolution: inputs and outputs are held as DTYPE; sums are fp32, to which a bias is
// added before ReLU is taken, then they are rounded, once.
#pragma once
#include "stages/conv/tensor/packed.cuh"
#include "stages/element.cuh"

using Value = Element<DTYPE>;
using Held = Value::Held;

// An input, zero in the padding.
__device__ __forceinline__ float value_at(const Held* __restrict__ x, size_t n, int y, int col,
                                          int c) {
    if (PAD > 0 && (y < 0 || y >= H || col < 0 || col >= W)) return 0.0f;
    return Value::load(x[cell<READS, H, W, CH>(n, y, col, c)]);
}
// Four neighbours, the first where four of them are aligned.
__device__ __forceinline__ float4 four_at(const Held* from) {
    if constexpr (DTYPE == FP32) {
        return *reinterpret_cast<const float4*>(from);
    } else {
        const uint2 four = *reinterpret_cast<const uint2*>(from);
        return {Value::load(Held(four.x & 0xffff)), Value::load(Held(four.x >> 16)),
                Value::load(Held(four.y & 0xffff)), Value::load(Held(four.y >> 16))};
    }
}

// Without a bias there is none to read.
__device__ __forceinline__ float bias_at(const float* __restrict__ bias, int filter) {
    return BIAS ? bias[filter] : 0.0f;
}
// A sum with its bias, and ReLU, which NaN passes.
template <class T>
__device__ __forceinline__ T ended(T sum, float bias) {
    const T v = BIAS ? sum + bias : sum;
    return RELU && v < 0 ? T(0) : v;
}
