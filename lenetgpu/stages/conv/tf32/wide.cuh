// wgmma (sm_90a) on TF32: D[64][2 * size] (+)= A[64][8] B[8][2 * size], A in registers, B in shared memory
// as ptx/wgmma.cuh has it; and copies that an mbarrier counts by the threads that made them.
#pragma once
#include "gpu/ptx/tf32.cuh"
#include "gpu/ptx/wgmma.cuh"

namespace ptx {

#define BIND_8(c, i) \
    c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), \
        c(d[i + 7])
#define BIND_32(c, i) BIND_8(c, i), BIND_8(c, i + 8), BIND_8(c, i + 16), BIND_8(c, i + 24)
#define BIND_64(c) BIND_32(c, 0), BIND_32(c, 32)
#define REGISTERS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64 REGISTERS_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA(shape, add, registers, operands) \
    "{ .reg .pred p; setp.ne.b32 p, " add ", 0; wgmma.mma_async.sync.aligned." shape \
    ".f32.tf32.tf32 {" registers "}, " operands ", p, 1, 1; }"
#define WGMMA_OF(size, shape, registers, bound, operands) \
    template <bool ADD> \
    __device__ __forceinline__ void wgmma_tf32(float (&d)[size], const u32 (&a)[4], u64 b) { \
        if constexpr (ADD) \
            asm volatile(WGMMA(shape, "1", registers, operands) \
                         : bound("+f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
        else \
            asm volatile(WGMMA(shape, "0", registers, operands) \
                         : bound("=f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    }
#define BOUND_32(c) BIND_32(c, 0)

WGMMA_OF(32, "m64n64k8", REGISTERS_32, BOUND_32, "{%32, %33, %34, %35}, %36")
WGMMA_OF(64, "m64n128k8", REGISTERS_64, BIND_64, "{%64, %65, %66, %67}, %68")

#undef BOUND_32
#undef WGMMA_OF
#undef WGMMA
#undef REGISTERS_64
#undef REGISTERS_32
#undef BIND_64
#undef BIND_32
#undef BIND_8

// Keeps the compiler from taking apart what `v` is the sum of.
__device__ __forceinline__ void here(u32& v) { asm volatile("" : "+r"(v)); }
// Arrives when all copies that this thread has asked for so far have landed.
__device__ __forceinline__ void arrive_after_copies(u32 bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

}  // namespace ptx
