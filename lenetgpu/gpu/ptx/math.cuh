// fp16 arithmetic on pairs, under names; a pair is a 32-bit word, the first half low.
#pragma once

namespace ptx {

using u32 = unsigned;
using u64 = unsigned long long;

__device__ __forceinline__ u32 half2(float low, float high) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
__device__ __forceinline__ u32 half2_relu(float low, float high) {
    u32 packed;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
__device__ __forceinline__ float low_half(u32 pair) {
    float value;
    asm("{ .reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(pair));
    return value;
}
__device__ __forceinline__ float high_half(u32 pair) {
    float value;
    asm("{ .reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(pair));
    return value;
}
// What fp16 leaves of two floats whose rounding is `pair`.
__device__ __forceinline__ u32 rest2(float low, float high, u32 pair) {
    return half2(low - low_half(pair), high - high_half(pair));
}
__device__ __forceinline__ u32 add2(u32 a, u32 b) {
    u32 sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}
__device__ __forceinline__ u32 subtract2(u32 a, u32 b) {
    u32 difference;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
    return difference;
}
__device__ __forceinline__ u32 min2(u32 a, u32 b) {
    u32 least;
    asm("min.f16x2 %0, %1, %2;" : "=r"(least) : "r"(a), "r"(b));
    return least;
}
__device__ __forceinline__ u32 multiply_add2(u32 a, u32 b, u32 c) {
    u32 sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

}  // namespace ptx
