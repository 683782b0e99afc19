// conv2's products at a transform point, filters and transformed maps in shared memory: D[64 channels][8 rows,
// 4 images, 2 tiles of 4 columns], N = 64 in the order that the vectors of the maps lie in.
#pragma once
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/barrier.cuh"
#include "gpu/ptx/cluster.cuh"
#include "stages/fused/wgmma_winograd/conv1.cuh"

constexpr int ROWS = 5;
constexpr int STEP2_BYTES = 64 * 2 * VEC_BYTES, STEPS = 2 * ROWS;  // [2][channel][vector]
constexpr int FILTERS_BYTES = STEPS * STEP2_BYTES;            // of a point
constexpr int PLANE_BYTES = BATCH * 2 * SIDE * VEC_BYTES;     // maps: [point][channel/8]
constexpr int POINT_BYTES = PLANES * PLANE_BYTES;
constexpr int FILTER1_AT = POINTS * FILTERS_BYTES, MAPS_AT = FILTER1_AT + FILTER1_BYTES;
constexpr int FILTER_BARRIERS = 1 + POINTS;
constexpr int EARLY = 6;  // points written together; then the others

static_assert(TILE % BATCH == 0, "a batch lies within one tile");

template <int VALUE>
struct Constant {
    static constexpr int value = VALUE;
};
// By one thread of a block that has images: conv1's filters come, then each point's, told by a
// barrier each from `loaded` on.
__device__ __forceinline__ void load_filters(u32 base, u32 loaded, const unsigned char* filters1,
                                             const unsigned char* filters2) {
    ptx::barrier_expect(loaded, FILTER1_BYTES);
    ptx::bulk_load(base + FILTER1_AT, filters1, FILTER1_BYTES, loaded);
    for (int p = 0; p < POINTS; ++p) {
        ptx::barrier_expect(loaded + 8 + 8 * p, FILTERS_BYTES);
        ptx::bulk_load(base + p * FILTERS_BYTES, filters2 + p * FILTERS_BYTES, FILTERS_BYTES,
                       loaded + 8 + 8 * p);
    }
}
// LINE bytes of the maps are from a row to the next.
template <int POINT, int LINE>
__device__ __forceinline__ void multiply2(float (&d)[32], u64 filters, u64 maps) {
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const u64 a = filters + (POINT * STEPS + step) * STEP2_BYTES / 16;
        const u64 b =
            maps + (POINT * POINT_BYTES + step % 2 * 2 * PLANE_BYTES + step / 2 * LINE) / 16;
        if (step == 0)
            ptx::wgmma<false>(d, a, b);
        else
            ptx::wgmma<true>(d, a, b);
    }
    ptx::wgmma_commit();
}

__device__ __forceinline__ float pool(float a, float b, float c, float d) {
    return 0.125f * (((a + fabsf(a)) + (b + fabsf(b))) + ((c + fabsf(c)) + (d + fabsf(d))));
}
