// Waiting within a block: mbarriers by their shared addresses, a phase at a time (sm_90), and the
// numbered barriers at which some of a block's threads meet.
#pragma once
#include "gpu/ptx/math.cuh"

namespace ptx {

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
    while (!barrier_passed(bar, parity)) {
    }
}

// `threads` threads of the block meet at named barrier `id` (1 to 15); `arrive` does not wait.
__device__ __forceinline__ void sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace ptx
