// PTX of the mma.sync kernels (sm_80 and later) beside ptx.cuh's: products into another array,
// 16-byte loads from shared memory, fp16 split into what is kept and what is left.
#pragma once
#include "ptx.cuh"

namespace ptx {

__device__ __forceinline__ uint4 load_shared4(u32 from) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}
// A load that stays where it stands: one of constant data (.nc) would leave its loop for good, in
// registers.
__device__ __forceinline__ uint4 load_here(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return v;
}
__device__ __forceinline__ void prefetch(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
}

// d = a b or d += a b: D[16][8], A[16][16], B[16][8]. They stand where they are written: else the
// compiler gathers a loop's loads before its products, more than registers hold.
__device__ __forceinline__ void mma_start(float (&d)[4], uint4 a, uint2 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
        " {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(0.0f));
}
__device__ __forceinline__ void mma_add(float (&d)[4], uint4 a, uint2 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
        " {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

__device__ __forceinline__ float low_float(u32 packed) {
    float value;
    asm("{ .reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(packed));
    return value;
}
__device__ __forceinline__ float high_float(u32 packed) {
    float value;
    asm("{ .reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(packed));
    return value;
}
// What fp16 leaves of two floats whose rounding is `packed`.
__device__ __forceinline__ u32 rest2(float low, float high, u32 packed) {
    return half2(low - low_float(packed), high - high_float(packed));
}

}  // namespace ptx
