// Images to pool2's features in one kernel, as int8_features, with conv2's filters 2:4 sparse: of
// four channels of a filter element two are kept, and a product takes K = 64 for little more than 32 costs.
// Its 64 are four vectors of the maps at one stride: the first four elements of a filter row, or of the
// last column. The corner element of both planes comes last, two vectors by themselves; what would be the
// third and the fourth is read as well, other maps or pixels, and is multiplied by zeros.
// A block is GROUPS specialized warpgroups (specialized.cuh). sm_90a, any n >= 1.
#include "gpu/ptx/global.cuh"
#include "gpu/ptx/wgmma_sparse.cuh"
#include "stages/fused/wgmma_sparse/specialized.cuh"

// At `filters`: [step][thread] four words of kept bytes, then [step][thread] metadata
// (wgmma_sparse.cuh).
struct Sparse {
    using Sum = int;
    static constexpr int FILTER_ROWS = 5, LINES = FILTER_ROWS + 1, STEPS = 2 * LINES + 1;
    // Between planes are four vectors more, so that what a warp stores in both is free of bank conflicts.
    static constexpr int PLANE_STEP = PLANE_BYTES + 4 * VEC_BYTES, MAP_BYTES = 2 * PLANE_STEP;
    static constexpr int MAP_ROW = IMAGES * SIDE, PLANE = PLANE_STEP / VEC_BYTES;  // vectors
    static constexpr u64 PAIR_ORDER = PAIRS_APART;
    uint4 kept[STEPS];
    u32 metadata[STEPS];

    __device__ __forceinline__ Sparse(const unsigned char* filters, int tid) {
        const uint4* held = reinterpret_cast<const uint4*>(filters);
        const u32* where = reinterpret_cast<const u32*>(held + STEPS * WARPGROUP);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            kept[step] = ptx::load_constant(held + step * WARPGROUP + tid);
            metadata[step] = where[step * WARPGROUP + tid];
        }
    }
    // D[output channel][y][image][x] of a stage's maps.
    __device__ __forceinline__ void multiply(Sum (&d)[32 * IMAGES], u32 maps) const {
        u64 row = ptx::operand(maps, VEC_BYTES, SIDE * VEC_BYTES);
        u64 column = ptx::operand(maps, MAP_ROW * VEC_BYTES, SIDE * VEC_BYTES);
        u64 planes = ptx::operand(maps, PLANE_STEP, SIDE * VEC_BYTES);
        ptx::here(row);
        ptx::here(column);
        ptx::here(planes);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int plane = step / LINES * PLANE, line = step % LINES;
            if (step == 0)
                ptx::wgmma_sparse<false>(d, kept[step], row, metadata[step]);
            else if (step == STEPS - 1)
                ptx::wgmma_sparse<true>(d, kept[step], planes + 4 * MAP_ROW + 4, metadata[step]);
            else if (line == FILTER_ROWS)
                ptx::wgmma_sparse<true>(d, kept[step], column + plane + 4, metadata[step]);
            else
                ptx::wgmma_sparse<true>(d, kept[step], row + plane + line * MAP_ROW, metadata[step]);
        }
        ptx::wgmma_commit();
    }
};

__device__ __forceinline__ void run(Images images, const unsigned char* filters1,
                                    const unsigned char* filters2, const float* scales, uint4* out,
                                    int n) {
    carry_specialized<Bytes<Sparse>>(images, filters1, filters2, out, n, [=](int channel) {
        return Bytes<Sparse>{__ldg(scales + channel), __ldg(scales + channel + 8)};
    });
}

extern "C" __global__ void __launch_bounds__(GROUPS* WARPGROUP, 1)
    sparse_features(const Pixel* __restrict__ images, const unsigned char* __restrict__ filters1,
                    const unsigned char* __restrict__ filters2, const float* __restrict__ scales,
                    uint4* __restrict__ out, int n) {
    run(images, filters1, filters2, scales, out, n);
}
