// A load from shared memory that ptxas repeats where it is written twice.
#pragma once
#include "gpu/ptx/math.cuh"

namespace ptx {

__device__ __forceinline__ u32 load_shared_anew(u32 from) {
    u32 v;
    asm volatile("ld.volatile.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

}  // namespace ptx
