// conv2's filters on their way to a block of WARPS warps: a pipeline of stages in shared memory, filled
// by 16-byte copies. A stage is a filter element, or half of its outputs with PARTS 2.
#pragma once
#include "gpu/ptx/async.cuh"
#include "stages/fused/mma/conv1.cuh"

constexpr int THREADS = WARPS * WARP;
constexpr int FILTER = 5;
constexpr int STAGE_BYTES = 4096;
constexpr int STAGES = 2 * PARTS + 1;                      // an element, the next one, and a stage more
constexpr int FILTERS_BYTES = FILTER * FILTER * PARTS * STAGE_BYTES;

// The filters, again and again: a filter element's stages and the one after are there to be read while the
// rest of the next element is on its way.
struct Pipeline {
    const unsigned char* filters;
    int from = 0;                                          // the next to fetch, in bytes
    u32 stage[PARTS + 1], free[PARTS];

    __device__ __forceinline__ Pipeline(u32 base, const unsigned char* filters) : filters(filters) {
#pragma unroll
        for (int i = 0; i <= PARTS; ++i) fetch(stage[i] = base + i * STAGE_BYTES);
#pragma unroll
        for (int i = 0; i < PARTS; ++i) free[i] = base + (PARTS + 1 + i) * STAGE_BYTES;
        ptx::copy_commit();
    }
    __device__ __forceinline__ void fetch(u32 to) {
#pragma unroll
        for (int b = 0; b < STAGE_BYTES; b += THREADS * VEC_BYTES) {
            const int at = b + threadIdx.x * VEC_BYTES;
            if (b + THREADS * VEC_BYTES <= STAGE_BYTES || at < STAGE_BYTES)
                ptx::copy16(to + at, filters + from + at);
        }
        from = from + STAGE_BYTES == FILTERS_BYTES ? 0 : from + STAGE_BYTES;
    }
    // Every warp has what was fetched an element ago, and is through with the element before.
    __device__ __forceinline__ void wait() {
        ptx::copy_wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PARTS; ++i) fetch(free[i]);
        ptx::copy_commit();
    }
    __device__ __forceinline__ void advance(u32 base) {
        const u32 last = base + (STAGES - 1) * STAGE_BYTES;
#pragma unroll
        for (int i = 0; i < PARTS; ++i) free[i] = stage[i];
        stage[0] = stage[PARTS];
#pragma unroll
        for (int i = 1; i <= PARTS; ++i)
            stage[i] = stage[i - 1] == last ? base : stage[i - 1] + STAGE_BYTES;
    }
};
