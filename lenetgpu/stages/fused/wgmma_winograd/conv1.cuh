// Pixels to conv1's pooled maps, transformed, in registers: A is pixel pairs from registers (rows:
// positions), B the filters, 32 channels at 2 output columns, as in wgmma/conv1.cuh. There a thread
// has pooled positions of many lines; here ACROSS neighbours of one, so that it transforms what it
// has, while the next are multiplied.
#pragma once
#include "gpu/ptx/shared2.cuh"
#include "gpu/ptx/wgmma_shared.cuh"
#include "stages/fused/wgmma/conv1.cuh"
#include "stages/fused/wgmma_winograd/transform.cuh"

constexpr int BATCH = 2 * IMAGES;       // images of a warpgroup
constexpr int PLANES = 4;               // of 8 channels
constexpr int ACROSS = SIDE / 2;        // pooled positions of a thread: half of a line
constexpr int BLOCKS = BATCH * SIDE / 16;  // of 16 lines: a warp has 4, a lane half of one
constexpr int FOURTH = 4 * ROW_BYTES;

static_assert(BATCH * SIDE % 16 == 0 && SIDE % 4 == 0, "a warp's lines are of one image");

// A batch's pixels on their way to shared memory, by way of registers; zeros past the last image.
class Batch {
    static constexpr int PATCHES = BATCH * PIXELS / 8, EACH = (PATCHES + WARPGROUP - 1) / WARPGROUP;
    Patch patch_[EACH];

public:
    __device__ __forceinline__ void fetch(const Pixel* images, int first, int n, int tid) {
        const int there = min(BATCH, n - first) * (PIXELS / 8);
        const Pixel* from = images + size_t(first) * PIXELS + tid * 8;
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            patch_[k] = Patch{};
            if (tid + k * WARPGROUP < there) patch_[k] = load(from + k * WARPGROUP * 8);
        }
    }
    __device__ __forceinline__ void stage(u32 to, int tid) const {
#pragma unroll
        for (int k = 0; k < EACH; ++k)
            if (tid + k * WARPGROUP < PATCHES)
                ptx::store_shared(to + (tid + k * WARPGROUP) * CELL, halves(patch_[k]));
    }
};

// Which four lines of the batch a warp has in a block, and which of them this thread.
struct Line {
    int image, y, half;

    __device__ __forceinline__ Line(int block, int warp, int lane) {
        const int four = 4 * block + warp;
        image = four / (SIDE / 4);
        y = four % (SIDE / 4) * 4 + lane / 4 % 4;
        half = lane / 16;
    }
};

// Pixel pairs under a thread's positions, for the upper and the lower output row: of filter row
// lane % 4, and of the fourth row what its K slot has (pack_conv1). Neighbours share two of three.
struct Strips {
    u32 row, slot;
    u32 upper[ACROSS + 2], lower[ACROSS + 2], upper4[ACROSS], lower4[ACROSS];

    __device__ __forceinline__ Strips(u32 images, const Line& line, int quad) {
        const u32 at = images + line.image * IMAGE_BYTES + 2 * line.y * ROW_BYTES + line.half * 24;
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

__device__ __forceinline__ void multiply1(float (&d)[32], const Strips& s, int x, u64 filters) {
    ptx::wgmma_fence();
    ptx::wgmma<false>(d, uint4{s.upper[x], s.lower[x], s.upper[x + 1], s.lower[x + 1]}, filters);
    ptx::wgmma<true>(d, uint4{s.upper[x + 2], s.lower[x + 2], s.upper4[x], s.lower4[x]},
                     filters + STEP1_BYTES / 16);
    ptx::wgmma_commit();
}

// The 8 inputs of this half's tile: 6 are this thread's, 2 those of the lane with the other half.
__device__ __forceinline__ void tile_of(u32 (&d)[POINTS], const u32 (&own)[ACROSS], int half) {
    const u32 first = __shfl_xor_sync(~0u, half ? own[0] : own[4], 16);
    const u32 second = __shfl_xor_sync(~0u, half ? own[1] : own[5], 16);
    d[0] = half ? first : own[0], d[1] = half ? second : own[1];
#pragma unroll
    for (int i = 2; i < 6; ++i) d[i] = half ? own[i - 2] : own[i];
    d[6] = half ? own[4] : first, d[7] = half ? own[5] : second;
}

// What conv2 multiplies, pairs of channels of a thread's tiles.
using Values = u32[BLOCKS][PLANES][POINTS];

// `never`: as ptx::here has it, with room at `images`.
__device__ __forceinline__ void convolve1(Values& values, u32 images, u32 filters1, int warp,
                                          int lane, bool never) {
    constexpr int POSITIONS = BLOCKS * ACROSS;
    const u64 filters = ptx::operand(filters1, 64 * CELL, 8 * CELL);
    u32 pooled[BLOCKS][PLANES][ACROSS];
    const auto begin = [=](int block) {
        return Strips(images, Line(block, warp, lane), lane % 4);
    };
    const auto finish = [&](int block, int plane) {
        u32 d[POINTS];
        tile_of(d, pooled[block][plane], lane / 16);
        transform(d, values[block][plane]);
        ptx::here(values[block][plane], never, images);
    };
    float even[32], odd[32];
    Strips strips = begin(0), next_strips = strips;
    strips.load(0);
    multiply1(even, strips, 0, filters);
    strips.load(1);
#pragma unroll
    for (int at = 0; at < POSITIONS; ++at) {
        const int next = at + 1, ahead = at + 2, block = at / ACROSS, x = at % ACROSS;
        if (next < POSITIONS) {
            if (next % ACROSS == 0) strips = next_strips;
            multiply1(next % 2 ? odd : even, strips, next % ACROSS, filters);
            if (ahead < POSITIONS) {
                if (ahead % ACROSS == 0)
                    next_strips = begin(ahead / ACROSS), next_strips.load(0);
                else
                    strips.load(ahead % ACROSS);
            }
            if (block > 0 && x < PLANES) finish(block - 1, x);
            ptx::wgmma_wait<1>();
        } else {
            ptx::wgmma_wait<0>();
        }
        float(&d)[32] = at % 2 ? odd : even;
        ptx::settle(d);
        u32 pairs[PLANES];
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane)
            pooled[block][plane][x] = pairs[plane] = pool_pair(d + 8 * plane);
        ptx::here(pairs, never, images);
    }
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane) finish(BLOCKS - 1, plane);
}
