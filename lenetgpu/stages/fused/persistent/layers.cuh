// The layers of the persistent kernel, each by warps 0 to 7 of a block and for one image.
#pragma once
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/send.cuh"
#include "gpu/ptx/shared.cuh"

using ptx::u32;
using ptx::u64;

constexpr int WARP = 32, WORKERS = 8 * WARP;
constexpr int SIDE = 28, FILTER_SIDE = 5, FILTER = FILTER_SIDE * FILTER_SIDE, POOLED = 12, HIDDEN = 128, CLASSES = 10;
constexpr int BANDS = 4, TEAM = BLOCKS / BANDS;                // blocks that share a band of rows
constexpr int MAPS1 = 32, OWN1 = MAPS1 / TEAM;                 // conv1's maps, a block's
constexpr int ROWS1 = POOLED / BANDS;                          // pool1's rows that a block makes
constexpr int SEEN = 2 * ROWS1 + FILTER_SIDE - 1;              // the image's rows that they need
constexpr int STRIPS = 3, SUMS = 8, WINDOW = SUMS + FILTER_SIDE - 1;  // of a conv1 row; of a thread
constexpr int ITEMS = OWN1 * ROWS1 * STRIPS * 2;
constexpr int FILTER_PITCH = 28;
constexpr int NEEDED = 2 + FILTER_SIDE - 1;                    // pool1's rows for two of conv2's
constexpr int MAP_PITCH = NEEDED * POOLED + 4;                 // lanes an odd number of 16 bytes apart
constexpr int GROUP = 4, QUADS = 4;                            // conv2's maps of a warp, its warps a row
constexpr int MAPS2 = GROUP * QUADS, PASSES = 4 / TEAM;        // of a pass
constexpr int POOLED_COLUMNS = 4, FEATURES = 8;                // features of a thread
constexpr int UNIT = 8, PIECES = SIDE * UNIT / 4;              // words of a row; uint4 of an image
constexpr int SEEN_PIECES = SEEN * UNIT / 4, BAND_PIECES = 2 * ROWS1 * UNIT / 4;
constexpr int MAIL_BYTES = SEEN * UNIT * 4, FLOAT_BYTES = SEEN * SIDE * 4;
constexpr int MAP_BYTES = MAPS1 * NEEDED * POOLED * 4;
constexpr int CONV2_AT = MAPS1 * FILTER_PITCH, FC1_AT = CONV2_AT + 16 * FILTER * MAPS1 * GROUP;
constexpr int FC2_AT = FC1_AT + 16 * FEATURES * WORKERS * GROUP;

struct alignas(16) Shared {
    uint4 image[PIECES];                                       // block 0: all rows as they came
    u32 mail[SEEN * UNIT];                                     // [row][28 pixels, the image's tag]
    float pixels[SEEN * SIDE];
    float maps[MAPS1 * MAP_PITCH];                             // [map][6][12]
    float rows[PASSES][2][POOLED_COLUMNS * MAPS2];             // [pass][row][column pair][map]
    float parts[BLOCKS][HIDDEN];                               // block 0: every block's of fc1
    float filters1[OWN1 * FILTER_PITCH];
    float4 filters2[PASSES > 1 ? PASSES * QUADS * FILTER * MAPS1 : 1];  // [quad][filter element][map in]
    u64 mailed, floats, mapped, added;                         // barriers
};
static_assert(BLOCKS == 8 || BLOCKS == 16, "all of conv2's maps in one pass or two");

// Adds v over the lanes. The bits of a lane's number from M down choose, the highest first, which of
// the sums it keeps as v[0]; where one sum is left, the bits below are added over.
template <int M, int N>
__device__ __forceinline__ void add_over_lanes(float (&v)[N], int lane) {
    constexpr int LEFT = N > 1 ? N / 2 : 1;
    const bool upper = lane & M;
    float half[LEFT];
#pragma unroll
    for (int i = 0; i < LEFT; ++i) {
        const float low = v[i], high = v[i + N - LEFT];
        half[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, M);
    }
    if constexpr (M > 1) add_over_lanes<M / 2>(half, lane);
    v[0] = half[0];
}

__device__ __forceinline__ void load_window(const float* from, float (&to)[WINDOW]) {
#pragma unroll
    for (int i = 0; i < WINDOW; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i);
        to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
}

// This block's rows and maps of pool1, four sums of a row at a time, into the blocks that need them.
__device__ __forceinline__ void conv1(Shared& s, int band, int member, int thread) {
#pragma unroll 1
    for (int first = thread - thread % WARP; first < ITEMS; first += WORKERS) {
        const int item = min(first + thread % WARP, ITEMS - 1);  // pairs of rows side by side
        const int dy = item % 2, x = item / 2 % STRIPS * SUMS, y = item / (2 * STRIPS) % ROWS1;
        const int map = item / (2 * STRIPS * ROWS1);
        float w[FILTER_PITCH], sum[SUMS] = {};
#pragma unroll
        for (int i = 0; i < FILTER_PITCH; i += 4) {
            const float4 four =
                *reinterpret_cast<const float4*>(s.filters1 + map * FILTER_PITCH + i);
            w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
        }
#pragma unroll
        for (int r = 0; r < FILTER_SIDE; ++r) {
            float in[WINDOW];
            load_window(s.pixels + (2 * y + dy + r) * SIDE + x, in);
#pragma unroll
            for (int t = 0; t < FILTER_SIDE; ++t)
#pragma unroll
                for (int i = 0; i < SUMS; ++i) sum[i] = fmaf(in[i + t], w[r * FILTER_SIDE + t], sum[i]);
        }
        float four[SUMS / 2];
#pragma unroll
        for (int i = 0; i < SUMS / 2; ++i) {
            const float two = fmaxf(sum[2 * i], 0.0f) + fmaxf(sum[2 * i + 1], 0.0f);
            four[i] = two + __shfl_xor_sync(~0u, two, 1);
        }
        if (first + thread % WARP >= ITEMS) continue;
        const uint4 words = {__float_as_uint(four[0]), __float_as_uint(four[1]),
                             __float_as_uint(four[2]), __float_as_uint(four[3])};
        const int row = band * ROWS1 + y;
        const u32 to = ptx::shared(s.maps + (member * OWN1 + map) * MAP_PITCH + row * POOLED +
                                   x / 2);
#pragma unroll
        for (int there = 0; there < BANDS; ++there)
            if (row >= 2 * there && row < 2 * there + NEEDED)
#pragma unroll
                for (int i = 0; i < TEAM; i += 2) {
                    const int block = there * TEAM + i + dy;
                    ptx::store_cluster16(ptx::in_block(to - 2 * there * POOLED * 4, block), words,
                                         ptx::in_block(ptx::shared(&s.mapped), block));
                }
    }
}

// A row of four of conv2's maps: this lane's input map, then the sum over all of them, rectified
// and added in pairs of columns.
__device__ __forceinline__ void conv2(Shared& s, const float4 (&w)[FILTER], int pass, int warp,
                                      int lane) {
    const int row = warp / QUADS, quad = warp % QUADS;
    float sum[SUMS * GROUP] = {};
#pragma unroll
    for (int r = 0; r < FILTER_SIDE; ++r) {
        float in[WINDOW];
        load_window(s.maps + lane * MAP_PITCH + (row + r) * POOLED, in);
#pragma unroll
        for (int t = 0; t < FILTER_SIDE; ++t) {
            const float4 weight = w[r * FILTER_SIDE + t];
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                float* to = sum + i * GROUP;
                to[0] = fmaf(in[i + t], weight.x, to[0]), to[1] = fmaf(in[i + t], weight.y, to[1]);
                to[2] = fmaf(in[i + t], weight.z, to[2]), to[3] = fmaf(in[i + t], weight.w, to[3]);
            }
        }
    }
    add_over_lanes<WARP / 2>(sum, lane);
    const float one = fmaxf(sum[0], 0.0f), two = one + __shfl_xor_sync(~0u, one, GROUP);
    if (lane / GROUP % 2 == 0)
        s.rows[pass][row][lane / (2 * GROUP) * MAPS2 + quad * GROUP + lane % GROUP] = two;
}

// fc1 of this block's features: a thread takes eight of a pass and four hidden units.
__device__ __forceinline__ void fc1(Shared& s, const float4 (&w)[PASSES][FEATURES], u32 rank,
                                    int warp, int lane) {
    const int first = lane % 8 * FEATURES;
    float sum[GROUP] = {};
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        const float *top = s.rows[pass][0] + first, *below = s.rows[pass][1] + first;
#pragma unroll
        for (int i = 0; i < FEATURES; ++i) {
            const float feature = top[i] + below[i];
            sum[0] = fmaf(feature, w[pass][i].x, sum[0]);
            sum[1] = fmaf(feature, w[pass][i].y, sum[1]);
            sum[2] = fmaf(feature, w[pass][i].z, sum[2]);
            sum[3] = fmaf(feature, w[pass][i].w, sum[3]);
        }
    }
    add_over_lanes<4>(sum, lane);
    const int unit = warp * 16 + lane / 8 * GROUP + lane % 8 / 2;
    if (lane % 2 == 0)
        ptx::store_cluster4(ptx::in_block(ptx::shared(&s.parts[rank][unit]), 0), sum[0],
                            ptx::in_block(ptx::shared(&s.added), 0));
}
