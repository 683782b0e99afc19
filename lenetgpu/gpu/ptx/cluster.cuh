// Working with other blocks: those of a cluster, by their shared memory and barriers, and those of
// the grids before and after (sm_90).
#pragma once
#include "gpu/ptx/shared.cuh"

namespace ptx {

// The address that `at` of this block has in block `rank` of the cluster.
__device__ __forceinline__ u32 in_block(u32 at, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}
__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// `barrier_wait` where other blocks of the cluster wrote what this thread reads next.
__device__ __forceinline__ void barrier_wait_cluster(u32 bar, u32 parity) {
    u32 passed;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
            " selp.u32 %0, 1, 0, p; }"
            : "=r"(passed)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (passed == 0);
}
// Tells barrier `bar` of another block; orders no memory, which wgmma's reads do not need.
__device__ __forceinline__ void barrier_arrive_cluster(u32 bar) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar)
                 : "memory");
}
// Writes to another block, whose barrier `bar` counts the 8 bytes as they land.
__device__ __forceinline__ void store_cluster(u32 to, float2 v, u32 bar) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
            "r"(to),
        "f"(v.x), "f"(v.y), "r"(bar)
        : "memory");
}
// Every thread of the cluster waits for all; barriers set up before `barrier_init_fence` are seen.
__device__ __forceinline__ void cluster_start() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::
                     : "memory");
}

#if __CUDA_ARCH__ >= 900
// What every thread of the cluster wrote before is seen by every thread of it after.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
// The four floats that block `rank` of the cluster holds where this block has `mine`.
__device__ __forceinline__ float4 load_of_block(const float4* mine, int rank) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(in_block(shared(mine), rank))
                 : "memory");
    return v;
}
#endif

// Lets the next kernel's blocks start where there is room; until this grid is over they may only
// do what does not hang on it, then `wait_for_grid`.
__device__ __forceinline__ void start_next_grid() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the grids before this one are over and what they wrote can be read.
__device__ __forceinline__ void wait_for_grid() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace ptx
