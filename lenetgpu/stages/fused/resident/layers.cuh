// The layers of the resident kernel, each by warps 0 to 7 of a block and for one image.
#pragma once
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/shared.cuh"

using ptx::u32;
using ptx::u64;

constexpr int WARP = 32, WORKERS = 8 * WARP;
constexpr int SIDE = 28, TAPS = 5, FILTER = TAPS * TAPS, POOLED = 12, HIDDEN = 128, CLASSES = 10;
constexpr int MAPS1 = 32, OWN1 = MAPS1 / BLOCKS;               // conv1's maps, a block's
constexpr int GROUP = 4, GROUPS = 16 / BLOCKS;                 // conv2's maps of a pass, passes
constexpr int ROWS = 8, PAIRS = ROWS / 2;                      // conv2's rows, pooled columns
constexpr int STRIPS = 3, SUMS = 8, WINDOW = SUMS + TAPS - 1;  // of a conv1 row; of a thread
constexpr int ITEMS = OWN1 * POOLED * STRIPS * 2;
constexpr int FILTER_PITCH = 28;
constexpr int MAP_PITCH = POOLED * POOLED + 4;                 // lanes an odd number of 16 bytes apart
constexpr int FEATURES = PAIRS * GROUP / 2;                    // of a pass: a lane's of one pooled row
constexpr int UNIT = 8, PIECES = SIDE * UNIT / 4;              // words of a row; uint4 of an image
constexpr int IMAGE_BYTES = SIDE * UNIT * 4, FLOAT_BYTES = SIDE * SIDE * 4;
constexpr int CONV2_AT = MAPS1 * FILTER_PITCH, FC1_AT = CONV2_AT + 16 * FILTER * MAPS1 * GROUP;
constexpr int FC2_AT = FC1_AT + 16 * FEATURES * WORKERS * GROUP;

struct alignas(16) Shared {
    u32 mail[SIDE * UNIT];                                     // [row][28 pixels, the image's tag]
    float pixels[SIDE * SIDE];
    float maps[MAPS1 * MAP_PITCH];                             // [map][12][12]
    float rows[GROUPS][ROWS][PAIRS * GROUP];                   // [pass][row][column pair][map]
    float parts[BLOCKS][HIDDEN];                               // of fc1, in block 0
    float filters1[OWN1 * FILTER_PITCH];
    float4 filters2[GROUPS > 1 ? GROUPS * FILTER * MAPS1 : 1]; // [pass][tap][map in] of four maps
    u64 mailed, floats, mapped, added;                         // barriers
};
static_assert(BLOCKS == 8 || BLOCKS == 16, "four maps of conv2 a pass");

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

// Pixels to this block's maps of pool1, four sums of a row at a time, into every block.
__device__ __forceinline__ void conv1(Shared& s, u32 rank, int thread) {
#pragma unroll 1
    for (int first = thread - thread % WARP; first < ITEMS; first += WORKERS) {
        const int item = min(first + thread % WARP, ITEMS - 1);  // pairs of rows side by side
        const int dy = item % 2, x = item / 2 % STRIPS * SUMS, y = item / (2 * STRIPS) % POOLED;
        const int map = item / (2 * STRIPS * POOLED);
        float w[FILTER_PITCH], sum[SUMS] = {};
#pragma unroll
        for (int i = 0; i < FILTER_PITCH; i += 4) {
            const float4 four =
                *reinterpret_cast<const float4*>(s.filters1 + map * FILTER_PITCH + i);
            w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
        }
#pragma unroll
        for (int r = 0; r < TAPS; ++r) {
            float in[WINDOW];
            load_window(s.pixels + (2 * y + dy + r) * SIDE + x, in);
#pragma unroll
            for (int t = 0; t < TAPS; ++t)
#pragma unroll
                for (int i = 0; i < SUMS; ++i) sum[i] = fmaf(in[i + t], w[r * TAPS + t], sum[i]);
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
        const u32 to = ptx::shared(s.maps + (rank * OWN1 + map) * MAP_PITCH + y * POOLED + x / 2);
#pragma unroll
        for (int block = 0; block < BLOCKS; block += 2)
            ptx::store_cluster16(ptx::in_block(to, block + dy), words,
                               ptx::in_block(ptx::shared(&s.mapped), block + dy));
    }
}

// A row of four of conv2's maps: this lane's input map, then the sum over all of them, rectified
// and added in pairs of columns.
__device__ __forceinline__ void conv2(Shared& s, const float4 (&w)[FILTER], int pass, int warp,
                                      int lane) {
    float sum[SUMS * GROUP] = {};
#pragma unroll
    for (int r = 0; r < TAPS; ++r) {
        float in[WINDOW];
        load_window(s.maps + lane * MAP_PITCH + (warp + r) * POOLED, in);
#pragma unroll
        for (int t = 0; t < TAPS; ++t) {
            const float4 tap = w[r * TAPS + t];
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                float* to = sum + i * GROUP;
                to[0] = fmaf(in[i + t], tap.x, to[0]), to[1] = fmaf(in[i + t], tap.y, to[1]);
                to[2] = fmaf(in[i + t], tap.z, to[2]), to[3] = fmaf(in[i + t], tap.w, to[3]);
            }
        }
    }
    add_over_lanes<WARP / 2>(sum, lane);
    const float one = fmaxf(sum[0], 0.0f), two = one + __shfl_xor_sync(~0u, one, GROUP);
    if (lane / GROUP % 2 == 0)
        s.rows[pass][warp][lane / (2 * GROUP) * GROUP + lane % GROUP] = two;
}

// fc1 of this block's features: a lane takes half a pooled row of them and four hidden units.
__device__ __forceinline__ void fc1(Shared& s, const float4 (&w)[GROUPS][FEATURES], u32 rank,
                                    int warp, int lane) {
    const int row = lane % ROWS / 2, half = lane % 2 * FEATURES;
    float sum[GROUP] = {};
#pragma unroll
    for (int pass = 0; pass < GROUPS; ++pass) {
        const float *top = s.rows[pass][2 * row] + half, *below = s.rows[pass][2 * row + 1] + half;
#pragma unroll
        for (int i = 0; i < FEATURES; ++i) {
            const float feature = top[i] + below[i];
            sum[0] = fmaf(feature, w[pass][i].x, sum[0]);
            sum[1] = fmaf(feature, w[pass][i].y, sum[1]);
            sum[2] = fmaf(feature, w[pass][i].z, sum[2]);
            sum[3] = fmaf(feature, w[pass][i].w, sum[3]);
        }
    }
    add_over_lanes<ROWS / 2>(sum, lane);
    const int unit = warp * 16 + lane / ROWS * GROUP + lane % ROWS / 2;
    if (lane % 2 == 0)
        ptx::store_cluster4(ptx::in_block(ptx::shared(&s.parts[rank][unit]), 0), sum[0],
                           ptx::in_block(ptx::shared(&s.added), 0));
}
