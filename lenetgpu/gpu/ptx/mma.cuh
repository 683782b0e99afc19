// mma.sync (sm_80 and later) under names, fp16 in and fp32 sums, and 8x8 fp16 matrices on their way
// to registers.
#pragma once
#include "gpu/ptx/math.cuh"

namespace ptx {

// D = A B or D += A B over a warp: D[16][8], A[16][16], B[16][8], all in registers. They stand
// where they are written: else the compiler gathers a loop's loads before its products, more than
// registers hold.
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

// The two B's of 8 columns that a lane holds side by side.
__device__ __forceinline__ uint2 low2(uint4 v) { return {v.x, v.y}; }
__device__ __forceinline__ uint2 high2(uint4 v) { return {v.z, v.w}; }

// Four matrices in shared memory; lanes 8i to 8i + 7 name the rows of matrix i.
__device__ __forceinline__ uint4 load_matrices(u32 from) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}
// A matrix, a word a lane, transposed within the warp.
__device__ __forceinline__ u32 transpose(u32 matrix) {
    u32 result;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(matrix));
    return result;
}

}  // namespace ptx
