// Copies to shared memory that run beside the threads: of 4 or 16 bytes, in groups that a thread
// waits for (sm_80; ordinary copies before), and in bulk, counted by an mbarrier (sm_90).
#pragma once
#include "gpu/ptx/shared.cuh"

namespace ptx {

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

// Bytes and addresses are multiples of 16; the barrier counts the bytes as they land.
__device__ __forceinline__ void bulk_load(u32 to, const void* from, u32 bytes, u32 bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar)
        : "memory");
}
// The same into every block of the cluster that `blocks` has a bit for, at the same addresses.
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

}  // namespace ptx
