// wgmma of ptx/wgmma.cuh at N = 64 with both operands in shared memory.
#pragma once
#include "gpu/ptx/wgmma.cuh"

namespace ptx {

#define BIND_8(c, i) \
    c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), \
        c(d[i + 7])
#define WGMMA_64(add) \
    "{ .reg .pred p; setp.ne.b32 p, " add ", 0; wgmma.mma_async.sync.aligned.m64n64k16" \
    ".f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16," \
    " %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1," \
    " 1, 0, 0; }"

template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[32], u64 a, u64 b) {
    if constexpr (ADD)
        asm volatile(WGMMA_64("1")
                     : BIND_8("+f", 0), BIND_8("+f", 8), BIND_8("+f", 16), BIND_8("+f", 24)
                     : "l"(a), "l"(b));
    else
        asm volatile(WGMMA_64("0")
                     : BIND_8("=f", 0), BIND_8("=f", 8), BIND_8("=f", 16), BIND_8("=f", 24)
                     : "l"(a), "l"(b));
}

// Has `v` computed here, not where it is used, so that accumulators it is made of are free again:
// ptxas looks through anything less than a use that may happen. `never` is false, and ptxas must
// not know.
template <typename T, int SIZE>
__device__ __forceinline__ void here(const T (&v)[SIZE], bool never, u32 at) {
    if (__builtin_expect(never, false))
#pragma unroll
        for (int i = 0; i < SIZE; ++i) {
            const u32 word = *reinterpret_cast<const u32*>(&v[i]);
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + 4 * i), "r"(word) : "memory");
        }
}

#undef WGMMA_64
#undef BIND_8

}  // namespace ptx
