// Loads of 8 bytes from shared memory; shared.cuh has those of 4 and 16.
#pragma once
#include "gpu/ptx/math.cuh"

namespace ptx {

__device__ __forceinline__ uint2 load_shared2(u32 from) {
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
    return v;
}

}  // namespace ptx
