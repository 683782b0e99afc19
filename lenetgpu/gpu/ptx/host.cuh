// Memory of the host that it reads or writes meanwhile: nothing is kept in a cache, what a thread
// asks for stays in order; and the GPU's own clock.
#pragma once
#include "gpu/ptx/math.cuh"

namespace ptx {

__device__ __forceinline__ uint4 load_host(const uint4* from) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return v;
}
__device__ __forceinline__ void store_host(uint4* to, uint4 v) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
// Seen by the host after everything that this thread wrote, or read as written, before.
__device__ __forceinline__ void release_host(u32* to, u32 v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(v)
                 : "memory");
}
// What this thread reads after is not older than what it read before.
__device__ __forceinline__ void fence_host() {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}
__device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}
__device__ __forceinline__ u32 clocks() {
    u32 now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    return now;
}

}  // namespace ptx
