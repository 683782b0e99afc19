// Asynchronous 16-byte copies to shared memory, ordinary ones before sm_80; barriers in shared
// memory, whose arriving and waiting are apart (sm_80).
#pragma once

__device__ __forceinline__ void copy16(float* to, const float* from) {
#if __CUDA_ARCH__ >= 800
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
#else
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
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

#if __CUDA_ARCH__ >= 800
typedef unsigned long long Barrier;

__device__ __forceinline__ void barrier_start(Barrier* barrier, unsigned arrivals) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(address)
                 : "memory");
}

// Waits until the phase of this parity is complete.
__device__ __forceinline__ void barrier_wait(Barrier* barrier, unsigned parity) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned complete;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2;"
            " selp.u32 %0, 1, 0, p; }"
            : "=r"(complete)
            : "r"(address), "r"(parity)
            : "memory");
    } while (complete == 0);
}
#endif
