// With -D PARTS every warp notes in `spans` how many clocks each part of the kernel took it: numbers
// [block][warp][part]. Without it nothing is added. A part is what a warp did since the one before
// it ended; both barriers are parts of their own, and what a block prepares belongs to the first.
#pragma once
#include "stages/conv/convnet2/span.cuh"

enum Part { IMAGE_LOAD, FILTER_LOAD, LOADED_BARRIER, COMPUTE, COMPUTED_BARRIER, WRITE, PART_COUNT };

#ifdef PARTS
#define PARTS_END watch.note(spans);
#define FEWER_AT_ONCE , 4  // blocks: room for the clocks in registers
static_assert(THREADS_X * THREADS_Y % 32 == 0, "whole warps are clocked");

// Nothing that touches memory moves across it.
__device__ __forceinline__ long long clocks_now() {
    asm volatile("" ::: "memory");
    const long long now = clock64();
    asm volatile("" ::: "memory");
    return now;
}

struct Watch {
    long long since = clocks_now();
    long long spent[PART_COUNT] = {};

    __device__ __forceinline__ void end_of(Part part) {
        __syncwarp();
        const long long now = clocks_now();
        spent[part] += now - since;
        since = now;
    }
    __device__ __forceinline__ void note(long long* __restrict__ spans) {
        end_of(WRITE);
        const int thread = threadIdx.y * THREADS_X + threadIdx.x;
        if (thread % 32 != 0) return;
        const long long warp = blockIdx.x * (THREADS_X * THREADS_Y / 32LL) + thread / 32;
#pragma unroll
        for (int part = 0; part < PART_COUNT; ++part) spans[warp * PART_COUNT + part] = spent[part];
    }
};
#else
#define PARTS_END
#define FEWER_AT_ONCE

struct Watch {
    __device__ __forceinline__ void end_of(Part) {}
};
#endif
