// Pixels to conv1's pooled maps, to be transformed: A is pixel pairs from registers (rows:
// positions), B the filters, 32 channels at 2 output columns, as in wgmma/conv1.cuh. There a thread
// has pooled positions of many lines; here ACROSS neighbours of one, so that it transforms what it
// has.
#pragma once
#include "gpu/ptx/shared2.cuh"
#include "gpu/ptx/wgmma_shared.cuh"
#include "stages/fused/wgmma/conv1.cuh"
#include "stages/fused/wgmma_winograd/transform.cuh"

constexpr int BATCH = 2 * IMAGES;  // images at a time
constexpr int PLANES = 4;          // of 8 channels
constexpr int ACROSS = SIDE / 2;   // pooled positions of a thread: half of a line
constexpr int HALF_BYTES = 24;     // of pixels, to the second half
constexpr int FOURTH = 4 * ROW_BYTES;

// Pixels on their way to shared memory, by way of registers: PIXEL_VECTORS of 8, end to end.
template <int PIXEL_VECTORS>
class PixelVectors {
protected:
    static constexpr int EACH = (PIXEL_VECTORS + WARPGROUP - 1) / WARPGROUP;
    Pixels8 vectors_[EACH];

public:
    __device__ __forceinline__ void stage(u32 to, int tid) const {
#pragma unroll
        for (int k = 0; k < EACH; ++k)
            if (tid + k * WARPGROUP < PIXEL_VECTORS)
                ptx::store_shared(to + (tid + k * WARPGROUP) * VEC_BYTES, to_fp16(vectors_[k]));
    }
};

// Pixel pairs under a thread's positions, for the upper and the lower output row: of filter row
// lane % 4, and of the fourth row what its K slot has (pack_conv1). Neighbours share two of three.
struct Strips {
    u32 row, slot;
    u32 upper[ACROSS + 2], lower[ACROSS + 2], upper4[ACROSS], lower4[ACROSS];

    // Of the positions whose first pixel lies at `at`.
    __device__ __forceinline__ Strips(u32 at, int quad) {
        row = at + quad * ROW_BYTES, slot = at + FOURTH + min(quad, 2) * 4;
        load_two(0);
    }
    __device__ __forceinline__ void load_two(int x) {
        const uint2 u = ptx::load_shared2(row + x * 4);
        const uint2 l = ptx::load_shared2(row + ROW_BYTES + x * 4);
        upper[x] = u.x, upper[x + 1] = u.y, lower[x] = l.x, lower[x + 1] = l.y;
    }
    // What position x has and those before it have not.
    __device__ __forceinline__ void load(int x) {
        if (x % 2 == 0) load_two(x + 2);
        upper4[x] = ptx::load_shared(slot + x * 4);
        lower4[x] = ptx::load_shared(slot + ROW_BYTES + x * 4);
    }
};
static_assert(ACROSS * 4 == 24 && (ACROSS + 2) % 2 == 0 && ROW_BYTES % 8 == 0, "loads of 8 bytes");

template <bool ADD>
__device__ __forceinline__ void multiply_strip(float (&d)[32], const Strips& s, int x, u64 filters) {
    ptx::wgmma<ADD>(d, uint4{s.upper[x], s.lower[x], s.upper[x + 1], s.lower[x + 1]}, filters);
    ptx::wgmma<true>(d, uint4{s.upper[x + 2], s.lower[x + 2], s.upper4[x], s.lower4[x]},
                     filters + STEP1_BYTES / 16);
}
__device__ __forceinline__ void multiply1(float (&d)[32], const Strips& s, int x, u64 filters) {
    ptx::wgmma_fence();
    multiply_strip<false>(d, s, x, filters);
    ptx::wgmma_commit();
}

// The 8 inputs of this half's tile: 6 are this thread's, 2 those of the lane with the other half.
template <typename T>
__device__ __forceinline__ void tile_of(T (&d)[POINTS], const T (&own)[ACROSS], int half) {
    const T first = __shfl_xor_sync(~0u, half ? own[0] : own[4], 16);
    const T second = __shfl_xor_sync(~0u, half ? own[1] : own[5], 16);
    d[0] = half ? first : own[0], d[1] = half ? second : own[1];
#pragma unroll
    for (int i = 2; i < 6; ++i) d[i] = half ? own[i - 2] : own[i];
    d[6] = half ? own[4] : first, d[7] = half ? own[5] : second;
}

