// wgmma of ptx/wgmma.cuh whose A has two of every four values along K and where they lie.
#pragma once
#include "gpu/ptx/wgmma.cuh"

namespace ptx {

#define BIND_16(c, i) \
    c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), \
        c(d[i + 7]), c(d[i + 8]), c(d[i + 9]), c(d[i + 10]), c(d[i + 11]), c(d[i + 12]), \
        c(d[i + 13]), c(d[i + 14]), c(d[i + 15])
#define WGMMA_SPARSE(add, operands) \
    "{ .reg .pred p; setp.ne.b32 p, " add ", 0; wgmma.mma_async.sp.sync.aligned.m64n128k64" \
    ".s32.s8.u8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17," \
    " %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35," \
    " %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53," \
    " %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " operands ", 0, p; }"

// D[64][128] (+)= A[64][64] B[64][128], A signed and B unsigned bytes, exact sums. A is stored as
// [64][32]; of each four two are kept, and `metadata` says which: of rows 8 * (thread % 2) + thread /
// 4 % 8 + 16 * (thread / 32), the 8 fours from K = 32 * (thread / 2 % 2) on, two indices of 2 bits
// each, the lower index first.
template <bool ADD>
__device__ __forceinline__ void wgmma_sparse(int (&d)[64], u64 a, u64 b, u32 metadata) {
    if constexpr (ADD)
        asm volatile(WGMMA_SPARSE("1", "%64, %65, %66")
                     : BIND_16("+r", 0), BIND_16("+r", 16), BIND_16("+r", 32), BIND_16("+r", 48)
                     : "l"(a), "l"(b), "r"(metadata));
    else
        asm volatile(WGMMA_SPARSE("0", "%64, %65, %66")
                     : BIND_16("=r", 0), BIND_16("=r", 16), BIND_16("=r", 32), BIND_16("=r", 48)
                     : "l"(a), "l"(b), "r"(metadata));
}

// The same with A's kept bytes in registers: of rows g = thread / 4 % 8 + 16 * (thread / 32) and g +
// 8 those from 4 * (thread % 4) on, then the same 16 further on.
template <bool ADD>
__device__ __forceinline__ void wgmma_sparse(int (&d)[64], const uint4& a, u64 b, u32 metadata) {
    if constexpr (ADD)
        asm volatile(WGMMA_SPARSE("1", "{%64, %65, %66, %67}, %68, %69")
                     : BIND_16("+r", 0), BIND_16("+r", 16), BIND_16("+r", 32), BIND_16("+r", 48)
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(metadata));
    else
        asm volatile(WGMMA_SPARSE("0", "{%64, %65, %66, %67}, %68, %69")
                     : BIND_16("=r", 0), BIND_16("=r", 16), BIND_16("=r", 32), BIND_16("=r", 48)
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(metadata));
}

#undef WGMMA_SPARSE
#undef BIND_16

}  // namespace ptx
