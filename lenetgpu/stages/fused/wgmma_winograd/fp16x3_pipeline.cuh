// conv2's filters as high + low, a few at a time: a pipeline that the blocks of a cluster fill together, and
// the barriers by which they and a block's warps tell each other what is there and what is not needed.
#pragma once
#include "stages/fused/wgmma_winograd/specialized.cuh"

constexpr int BLOCKS = 2;          // of a cluster
constexpr int UNITS = 4;           // of filters: high and low of an even point, of an odd one
constexpr int PAIRS = POINTS / 2;  // of points, whose maps are written together
constexpr int BARRIERS = 1 + 2 * UNITS + 2 * PAIRS;

static_assert(FILTERS_BYTES % (16 * BLOCKS) == 0, "a block loads its share of a unit");
static_assert(POINTS % 4 == 0, "a unit is used as often at even as at odd times in a batch");

struct Barriers {
    // conv1's filters; per unit: it is there, both blocks are done with it; per pair: likewise
    u32 loaded1, full, free, written, read;

    __device__ __forceinline__ explicit Barriers(u32 at)
        : loaded1(at), full(at + 8), free(full + 8 * UNITS), written(free + 8 * UNITS),
          read(written + 8 * PAIRS) {}
    // By one thread, before any other of the cluster uses them.
    __device__ __forceinline__ void begin() const {
        ptx::barrier_init(loaded1, 1);
        for (int i = 0; i < UNITS; ++i) {
            ptx::barrier_init(full + 8 * i, 1);
            ptx::barrier_init(free + 8 * i, BLOCKS * WARPGROUP / 32);
        }
        for (int i = 0; i < PAIRS; ++i) {
            ptx::barrier_init(written + 8 * i, BANDS * WARPGROUP / 32);
            ptx::barrier_init(read + 8 * i, WARPGROUP / 32);
        }
        ptx::barrier_init_fence();
    }
};

// The filters on their way: [point][high, low] in memory, a unit of them by one thread of each block.
struct Pipeline {
    const unsigned char* filters2;
    u32 base, rank;
    const Barriers& barriers;

    // This block's share of a unit, to both.
    __device__ __forceinline__ void load(int point, int part) const {
        constexpr int SHARE = FILTERS_BYTES / BLOCKS;
        const int unit = point % 2 * 2 + part;
        const u32 full = barriers.full + 8 * unit;
        ptx::barrier_expect(full, FILTERS_BYTES);
        ptx::bulk_load(base + unit * FILTERS_BYTES + rank * SHARE,
                       filters2 + (2 * point + part) * FILTERS_BYTES + rank * SHARE, SHARE, full,
                       (1 << BLOCKS) - 1);
    }
    // By a warp: where both blocks are done with that part of `before`, the point of `batch` that
    // is two before `point`.
    template <int BEFORE>
    __device__ __forceinline__ void follow(int part, int lane) const {
        constexpr int POINT = (BEFORE + 2) % POINTS;
        ptx::barrier_wait(barriers.free + 8 * (POINT % 2 * 2 + part), BEFORE / 2 & 1);
        if (lane == 0) load(POINT, part);
        __syncwarp();
    }
    // A warp is done with a unit.
    __device__ __forceinline__ void release(int unit, int lane) const {
        if (lane < BLOCKS)
            ptx::barrier_arrive_cluster(ptx::in_block(barriers.free + 8 * unit, lane));
    }
};

// A part of a point's filters times a part of its maps.
template <bool ADD>
__device__ __forceinline__ void multiply_part(float (&d)[32], u64 filters, u64 maps) {
    ptx::here(filters), ptx::here(maps);  // what is made of them is not kept for the next part
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const u64 a = filters + step * STEP2_BYTES / 16;
        const u64 b = maps + (step % 2 * 2 * PLANE_BYTES + step / 2 * LINE_BYTES) / 16;
        if (!ADD && step == 0)
            ptx::wgmma<false>(d, a, b);
        else
            ptx::wgmma<true>(d, a, b);
    }
}
