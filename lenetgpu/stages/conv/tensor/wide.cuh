// wgmma of ptx/wgmma.cuh with both operands in shared memory at N = 96, 104, 112 and 136.
#pragma once
#include "gpu/ptx/wgmma_shared.cuh"

namespace ptx {

#define BIND_8(c, i) \
    c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), \
        c(d[i + 7])
#define BIND_32(c) BIND_8(c, 0), BIND_8(c, 8), BIND_8(c, 16), BIND_8(c, 24)
#define BIND_48(c) BIND_32(c), BIND_8(c, 32), BIND_8(c, 40)
#define BIND_52(c) BIND_48(c), c(d[48]), c(d[49]), c(d[50]), c(d[51])
#define BIND_56(c) BIND_48(c), BIND_8(c, 48)
#define BIND_68(c) BIND_56(c), BIND_8(c, 56), c(d[64]), c(d[65]), c(d[66]), c(d[67])
#define REGISTERS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_48 REGISTERS_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_52 REGISTERS_48 ", %48, %49, %50, %51"
#define REGISTERS_56 REGISTERS_48 \
    ", %48, %49, %50, %51, %52, %53, %54, %55"
#define REGISTERS_68 REGISTERS_56 \
    ", %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67"
#define WGMMA(shape, add, registers, operands) \
    "{ .reg .pred p; setp.ne.b32 p, " add ", 0; wgmma.mma_async.sync.aligned." shape \
    ".f32.f16.f16 {" registers "}, " operands ", p, 1, 1, 0, 0; }"
#define WGMMA_OF(size, shape, registers, bind, operands) \
    template <bool ADD> \
    __device__ __forceinline__ void wgmma(float (&d)[size], u64 a, u64 b) { \
        if constexpr (ADD) \
            asm volatile(WGMMA(shape, "1", registers, operands) : bind("+f") : "l"(a), "l"(b)); \
        else \
            asm volatile(WGMMA(shape, "0", registers, operands) : bind("=f") : "l"(a), "l"(b)); \
    }

WGMMA_OF(48, "m64n96k16", REGISTERS_48, BIND_48, "%48, %49")
WGMMA_OF(52, "m64n104k16", REGISTERS_52, BIND_52, "%52, %53")
WGMMA_OF(56, "m64n112k16", REGISTERS_56, BIND_56, "%56, %57")
WGMMA_OF(68, "m64n136k16", REGISTERS_68, BIND_68, "%68, %69")

#undef WGMMA_OF
#undef WGMMA
#undef REGISTERS_68
#undef REGISTERS_56
#undef REGISTERS_52
#undef REGISTERS_48
#undef REGISTERS_32
#undef BIND_68
#undef BIND_56
#undef BIND_52
#undef BIND_48
#undef BIND_32
#undef BIND_8

}  // namespace ptx
