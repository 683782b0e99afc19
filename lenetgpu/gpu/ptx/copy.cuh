// Moving data and waiting for it, under names: shared memory by its 32-bit address, asynchronous
// copies of 16 bytes (sm_80), bulk copies, mbarriers, clusters and dependent grids (sm_90).
#pragma once
#include "gpu/ptx/math.cuh"

namespace ptx {

__device__ __forceinline__ u32 shared(const void* p) {
    return u32(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void store_shared(u32 to, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ void store_shared(u32 to, uint2 v) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_shared(u32 to, u32 v) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ u32 load_shared(u32 from) {
    u32 v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}
__device__ __forceinline__ uint4 load_shared4(u32 from) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}
// Adds one and says what was there.
__device__ __forceinline__ u32 increment_shared(u32 at) {
    u32 old;
    asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;"
                 : "=r"(old)
                 : "r"(at)
                 : "memory");
    return old;
}

// A load that stays where it stands: one of constant data (.nc) may leave its loop for good, in
// registers.
__device__ __forceinline__ uint4 load_here(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return v;
}
// Loads of what no one writes from the wait before them (`wait_for_grid`) on.
__device__ __forceinline__ uint2 load_constant(const uint2* from) {
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(__cvta_generic_to_global(from)));
    return v;
}
__device__ __forceinline__ uint4 load_constant(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(from)));
    return v;
}
__device__ __forceinline__ void prefetch(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
}

__device__ __forceinline__ void copy16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
}
// An ordinary copy before sm_80.
__device__ __forceinline__ void copy16(float* to, const float* from) {
#if __CUDA_ARCH__ >= 800
    copy16(shared(to), from);
#else
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
#endif
}
// Zeros where there is nothing to read.
__device__ __forceinline__ void copy4_or_zero(float* to, const float* from, bool there) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared(to)), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
#else
    *to = there ? *from : 0.0f;
#endif
}
__device__ __forceinline__ void copy16_or_zero(float* to, const float* from, bool there) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
#else
    *reinterpret_cast<float4*>(to) =
        there ? *reinterpret_cast<const float4*>(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#endif
}
__device__ __forceinline__ void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most PENDING of this thread's committed groups are under way.
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

__device__ __forceinline__ void barrier_init(u32 bar, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrives, and lets the phase wait for `bytes` of bulk copies too.
__device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ bool barrier_passed(u32 bar, u32 parity) {
    u32 passed;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
        " selp.u32 %0, 1, 0, p; }"
        : "=r"(passed)
        : "r"(bar), "r"(parity)
        : "memory");
    return passed != 0;
}
// Waits until the phase of this parity is over.
__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
#ifdef SPIN_LIMIT
    for (int spin = 0; !barrier_passed(bar, parity); ++spin)
        if (spin > SPIN_LIMIT) asm volatile("trap;");
#else
    while (!barrier_passed(bar, parity)) {
    }
#endif
}

// The same where other blocks of the cluster wrote what this thread reads next.
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

// `threads` threads of the block meet at named barrier `id` (1 to 15); `arrive` does not wait.
__device__ __forceinline__ void sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Bytes and addresses are multiples of 16; the barrier counts the bytes as they land.
__device__ __forceinline__ void bulk_load(u32 to, const void* from, u32 bytes, u32 bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar)
        : "memory");
}
// The same into every block of the cluster that `blocks` has a bit for, at the same addresses there.
__device__ __forceinline__ void bulk_load(u32 to, const void* from, u32 bytes, u32 bar,
                                          unsigned short blocks) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar), "h"(blocks)
        : "memory");
}
// Makes this thread's accesses to shared memory visible to wgmma and to bulk copies.
__device__ __forceinline__ void async_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

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
