// Stages of shared memory that some warps fill and others empty in turn, with two mbarriers each, and one more
// for filters that stay. A kernel includes it when it has said STAGES and BARRIERS_AT.
#pragma once
#include "gpu/ptx/barrier.cuh"
#include "stages/conv/tf32/coordinates.cuh"

constexpr int BARRIER_BYTES = 8, BARRIERS_BYTES = (2 * STAGES + 1) * BARRIER_BYTES;

struct Pipeline {
    u32 base;
    int stage = 0;
    u32 phase = 0;

    __device__ __forceinline__ explicit Pipeline(u32 base) : base(base) {}
    __device__ __forceinline__ u32 full() const { return base + BARRIERS_AT + stage * BARRIER_BYTES; }
    __device__ __forceinline__ u32 free() const { return full() + STAGES * BARRIER_BYTES; }
    __device__ __forceinline__ u32 filters_full() const {
        return base + BARRIERS_AT + 2 * STAGES * BARRIER_BYTES;
    }
    __device__ __forceinline__ void step() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    // Over as many stages as there are at most.
    __device__ __forceinline__ void step(int stages) {
        stage += stages;
        if (stage >= STAGES) stage -= STAGES, phase ^= 1;
    }
    // Arrivals at a stage that is filled, and at one that is read.
    __device__ __forceinline__ void begin(int filled, int read) const {
        for (int i = 0; i < STAGES; ++i) {
            const u32 bar = base + BARRIERS_AT + i * BARRIER_BYTES;
            ptx::barrier_init(bar, filled);
            ptx::barrier_init(bar + STAGES * BARRIER_BYTES, read);
        }
        ptx::barrier_init(filters_full(), 1);
        ptx::barrier_init_fence();
    }
};
