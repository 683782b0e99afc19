// Stores of 4 and 16 bytes into another block of the cluster, whose barrier `bar` counts them as they
// land (sm_90); `store_cluster` is the one of 8.
#pragma once
#include "gpu/ptx/math.cuh"

namespace ptx {

__device__ __forceinline__ void store_cluster4(u32 to, float v, u32 bar) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
        "f"(v), "r"(bar)
        : "memory");
}
__device__ __forceinline__ void store_cluster16(u32 to, uint4 v, u32 bar) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(to),
        "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(bar)
        : "memory");
}

}  // namespace ptx
