// wgmma (sm_90a) under names. It picks its N by the accumulator array: D[64][2 * size] (+)= A B,
// fp16 in and fp32 sums, or bytes in and int32 sums. A and B lie in shared memory, K-major and
// without swizzle: cores of 8 rows x 16 bytes; or A in registers. An accumulator is touched by
// constant indices alone.
#pragma once
#include "gpu/ptx/math.cuh"

namespace ptx {

// Descriptor of an operand: `k_step` bytes between neighbouring cores along K, `row_step` along M
// or N.
__device__ __forceinline__ u64 operand(u32 start, u32 k_step, u32 row_step) {
    return u64((start & 0x3ffff) >> 4) | u64(k_step >> 4) << 16 | u64(row_step >> 4) << 32;
}
// The same of rows of 128 bytes whose 16-byte vectors are swizzled (vector ^ row % 8), K-major; 8 rows
// are 1,024 bytes, to which tiles are aligned. Vectors along K are 16 bytes apart.
__device__ __forceinline__ u64 swizzled(u32 start) {
    return u64((start & 0x3ffff) >> 4) | u64(1) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from hoisting what depends on `v` out of a loop, into registers.
__device__ __forceinline__ void here(u64& v) { asm volatile("" : "+l"(v)); }
// Keeps the compiler from reading accumulators before the wait above it.
template <int SIZE>
__device__ __forceinline__ void settle(float (&d)[SIZE]) {
#pragma unroll
    for (int i = 0; i < SIZE; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int SIZE>
__device__ __forceinline__ void settle(int (&d)[SIZE]) {
#pragma unroll
    for (int i = 0; i < SIZE; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

#define REGISTERS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_40 REGISTERS_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39"
#define REGISTERS_64 REGISTERS_40 \
    ", %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55" \
    ", %56, %57, %58, %59, %60, %61, %62, %63"
#define BIND_4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define BIND_32(c, i) \
    BIND_4(c, i), BIND_4(c, i + 4), BIND_4(c, i + 8), BIND_4(c, i + 12), BIND_4(c, i + 16), \
        BIND_4(c, i + 20), BIND_4(c, i + 24), BIND_4(c, i + 28)
#define WGMMA(shape, add, registers, operands) \
    "{ .reg .pred p; setp.ne.b32 p, " add ", 0; wgmma.mma_async.sync.aligned." shape \
    ".f32.f16.f16 {" registers "}, " operands "; }"
#define WGMMA_BYTES(shape, add, registers, operands) \
    "{ .reg .pred p; setp.ne.b32 p, " add ", 0; wgmma.mma_async.sync.aligned." shape \
    ".s32.s8.u8 {" registers "}, " operands "; }"

template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[32], const uint4& a, u64 b) {
    if constexpr (ADD)
        asm volatile(WGMMA("m64n64k16", "1", REGISTERS_32, "{%32, %33, %34, %35}, %36, p, 1, 1, 0")
                     : BIND_32("+f", 0)
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
    else
        asm volatile(WGMMA("m64n64k16", "0", REGISTERS_32, "{%32, %33, %34, %35}, %36, p, 1, 1, 0")
                     : BIND_32("=f", 0)
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}

template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[40], u64 a, u64 b) {
    if constexpr (ADD)
        asm volatile(WGMMA("m64n80k16", "1", REGISTERS_40, "%40, %41, p, 1, 1, 0, 0")
                     : BIND_32("+f", 0), BIND_4("+f", 32), BIND_4("+f", 36)
                     : "l"(a), "l"(b));
    else
        asm volatile(WGMMA("m64n80k16", "0", REGISTERS_40, "%40, %41, p, 1, 1, 0, 0")
                     : BIND_32("=f", 0), BIND_4("=f", 32), BIND_4("=f", 36)
                     : "l"(a), "l"(b));
}

template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[64], u64 a, u64 b) {
    if constexpr (ADD)
        asm volatile(WGMMA("m64n128k16", "1", REGISTERS_64, "%64, %65, p, 1, 1, 0, 0")
                     : BIND_32("+f", 0), BIND_32("+f", 32)
                     : "l"(a), "l"(b));
    else
        asm volatile(WGMMA("m64n128k16", "0", REGISTERS_64, "%64, %65, p, 1, 1, 0, 0")
                     : BIND_32("=f", 0), BIND_32("=f", 32)
                     : "l"(a), "l"(b));
}

// D[64][128] (+)= A[64][32] B[32][128], A signed and B unsigned bytes, exact sums.
template <bool ADD>
__device__ __forceinline__ void wgmma(int (&d)[64], u64 a, u64 b) {
    if constexpr (ADD)
        asm volatile(WGMMA_BYTES("m64n128k32", "1", REGISTERS_64, "%64, %65, p")
                     : BIND_32("+r", 0), BIND_32("+r", 32)
                     : "l"(a), "l"(b));
    else
        asm volatile(WGMMA_BYTES("m64n128k32", "0", REGISTERS_64, "%64, %65, p")
                     : BIND_32("=r", 0), BIND_32("=r", 32)
                     : "l"(a), "l"(b));
}

#undef WGMMA_BYTES
#undef WGMMA
#undef BIND_32
#undef BIND_4
#undef REGISTERS_64
#undef REGISTERS_40
#undef REGISTERS_32

}  // namespace ptx
