// Copies of 4 or 16 bytes to shared memory that write zeros where the source lies `outside`:
// asynchronous from sm_80 on (wait as for ptx_copy.cuh's), through registers before it.
#pragma once
#include "ptx_copy.cuh"

__device__ __forceinline__ void copy4_or_zero(float* to, const float* from, bool inside) {
#if __CUDA_ARCH__ >= 800
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from),
                 "r"(inside ? 4 : 0)
                 : "memory");
#else
    *to = inside ? *from : 0.0f;
#endif
}

__device__ __forceinline__ void copy16_or_zero(float* to, const float* from, bool inside) {
#if __CUDA_ARCH__ >= 800
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(inside ? 16 : 0)
                 : "memory");
#else
    *reinterpret_cast<float4*>(to) =
        inside ? *reinterpret_cast<const float4*>(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#endif
}
