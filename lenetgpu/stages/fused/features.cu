// Images to pool2's features in one kernel, both convolutions on wgmma with fp32 sums.
// A block stays on its multiprocessor with the filters in shared memory; each of its GROUPS
// warpgroups carries two images at a time from pixels to features. conv1 takes pixel pairs from
// registers (rows: positions, columns: 32 channels at 2 output columns); conv2 reads conv1's pooled
// cells of 8 channels where they lie, no im2col. The warpgroups take turns at conv2, so that one
// feeds the tensor cores while the others do conv1, pool and store. sm_90a, any n >= 1.
#include "ptx.cuh"

using ptx::u32;
using ptx::u64;

constexpr int WARPGROUP = 128;
constexpr int ROW_BYTES = 28 * 2, PIXELS = 28 * 28;        // an image in shared memory: fp16
constexpr int IMAGE_BYTES = PIXELS * 2, PATCHES = IMAGES * PIXELS / 8;
constexpr int SIDE = 12, CELLS = SIDE * SIDE;              // pooled conv1 map
constexpr int CELL = 16;                                   // bytes: 8 fp16
constexpr int PLANE_BYTES = CELLS * IMAGES * CELL;         // [12][IMAGES][12][8 channels]
constexpr int MAP_BYTES = 4 * PLANE_BYTES;                 // [channel/8] planes
constexpr int STEPS = 50, STEP_BYTES = 64 * 16 * 2;        // conv2: 5 x 5 taps x 2 halves of 32
constexpr int FILTER2_BYTES = STEPS * STEP_BYTES;
constexpr int FILTER1_BYTES = 2 * STEP_BYTES;
constexpr int FILTER1_AT = FILTER2_BYTES, MAPS_AT = FILTER1_AT + FILTER1_BYTES;
constexpr int IMAGES_AT = MAPS_AT + GROUPS * MAP_BYTES;
constexpr int BARRIERS_AT = IMAGES_AT + GROUPS * IMAGES * IMAGE_BYTES;

static_assert(IMAGES == 2, "conv1: two images are nine tiles of 64 positions, a quarter map a warp");
static_assert(BARRIERS_AT + 8 * (GROUPS + 2) == SHARED_BYTES, "the launcher's layout differs");
static_assert(SHARED_BYTES <= 232448, "a block's shared memory on sm_90");

#if UINT8_PIXELS
using Pixel = unsigned char;
struct Patch {
    u32 low = 0, high = 0;
};
__device__ __forceinline__ Patch load(const Pixel* p) {
    const uint2 words = __ldg(reinterpret_cast<const uint2*>(p));
    return {words.x, words.y};
}
// Bytes become fp16 exactly: 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ uint4 halves(Patch p) {
    constexpr u32 K = 0x64006400, B = 0x64646464;
    return {ptx::subtract2(__byte_perm(p.low, B, 0x4140), K),
            ptx::subtract2(__byte_perm(p.low, B, 0x4342), K),
            ptx::subtract2(__byte_perm(p.high, B, 0x4140), K),
            ptx::subtract2(__byte_perm(p.high, B, 0x4342), K)};
}
constexpr float MEAN = 0.25f / 255.0f;
#else
using Pixel = float;
struct Patch {
    float4 low{}, high{};
};
__device__ __forceinline__ Patch load(const Pixel* p) {
    const float4* words = reinterpret_cast<const float4*>(p);
    return {__ldg(words), __ldg(words + 1)};
}
__device__ __forceinline__ uint4 halves(Patch p) {
    return {ptx::half2(p.low.x, p.low.y), ptx::half2(p.low.z, p.low.w),
            ptx::half2(p.high.x, p.high.y), ptx::half2(p.high.z, p.high.w)};
}
constexpr float MEAN = 0.25f;
#endif

// Twice the sum of four ReLUs.
__device__ __forceinline__ float pool(float a, float b, float c, float d) {
    return ((a + fabsf(a)) + (b + fabsf(b))) + ((c + fabsf(c)) + (d + fabsf(d)));
}

struct Pixels {
    Patch patch[2];
};

// Patches of 8 pixels, the images of a warpgroup end to end; zeros past the last image.
__device__ __forceinline__ void fetch(Pixels& p, const Pixel* images, int first, int n, int tid) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const int at = tid + k * WARPGROUP;
        p.patch[k] = Patch{};
        if (at < PATCHES && first + at / (PIXELS / 8) < n)
            p.patch[k] = load(images + size_t(first) * PIXELS + at * 8);
    }
}

__device__ __forceinline__ void stage(u32 to, const Pixels& p, int tid) {
    ptx::store_shared(to + tid * CELL, halves(p.patch[0]));
    if (tid + WARPGROUP < PATCHES)
        ptx::store_shared(to + (tid + WARPGROUP) * CELL, halves(p.patch[1]));
}

// D[position][8 channels x 2 output columns, 4 times]; rows g and g + 8 of a warp are the upper and
// the lower output row, so a pooling window meets in one thread. K: 5 rows x 3 pixel pairs, and one
// pair without weight. pair, cells: what this thread reads and writes of its first tile.
struct Tile1 {
    float d[32];
    uint4 a[2];
};
__device__ __forceinline__ void multiply1(Tile1& tile, u64 filters, const u32 (&pair)[4], int at) {
    const int from = at / 3 * 4 * ROW_BYTES + at % 3 * 16;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const u32 low = pair[2 * k] + from, high = pair[2 * k + 1] + from;
        tile.a[k] = {ptx::load_shared(low), ptx::load_shared(low + ROW_BYTES),
                     ptx::load_shared(high), ptx::load_shared(high + ROW_BYTES)};
    }
    ptx::wgmma_fence();
    ptx::wgmma<false>(tile.d, tile.a[0], filters);
    ptx::wgmma<true>(tile.d, tile.a[1], filters + STEP_BYTES / 16);
    ptx::wgmma_commit();
}
__device__ __forceinline__ void pool1(Tile1& tile, u32 cells, int at) {
    ptx::settle(tile.d);
    const u32 to = cells + (at / 3 * 2 * IMAGES * SIDE + at % 3 * 4) * CELL;
#pragma unroll
    for (int plane = 0; plane < 4; ++plane) {
        const float* d = tile.d + 8 * plane;
        ptx::store_shared(to + plane * PLANE_BYTES,
                          ptx::half2(MEAN / 2 * pool(d[0], d[2], d[4], d[6]),
                                     MEAN / 2 * pool(d[1], d[3], d[5], d[7])));
    }
}
__device__ __forceinline__ void convolve1(u32 filters, const u32 (&pair)[4], u32 cells) {
    const u64 b = ptx::operand(filters, 64 * CELL, 8 * CELL);
    Tile1 even, odd;
    multiply1(even, b, pair, 0);
#pragma unroll
    for (int at = 0; at < 9; at += 2) {
        if (at + 1 < 9) {
            multiply1(odd, b, pair, at + 1);
            ptx::wgmma_wait<1>();
        } else {
            ptx::wgmma_wait<0>();
        }
        pool1(even, cells, at);
        if (at + 1 < 9) {
            multiply1(even, b, pair, at + 2);
            ptx::wgmma_wait<1>();
            pool1(odd, cells, at + 1);
        }
    }
}

// D[output channel][y][image][x]: an 8-wide output row under tap (r, s) is 8 cells side by side.
// Hands the turn on after PASS_STEP of the steps.
__device__ __forceinline__ void convolve2(float (&d)[32 * IMAGES], u32 filters, u32 maps, u32 next,
                                          int lane) {
    u64 a = ptx::operand(filters, 8 * 8 * CELL, 8 * CELL);
    u64 b = ptx::operand(maps, PLANE_BYTES, SIDE * CELL);
    ptx::here(a);
    ptx::here(b);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int r = step / 10, s = step / 2 % 5, half = step % 2;
        const int cells = r * IMAGES * SIDE + s + half * 2 * CELLS * IMAGES;
        if (step == 0)
            ptx::wgmma<false>(d, a, b);
        else
            ptx::wgmma<true>(d, a + step * STEP_BYTES / 16, b + cells);
        if (step + 1 == PASS_STEP && lane == 0) ptx::barrier_arrive(next);
    }
    ptx::wgmma_commit();
}

// filters1: [step][2][dx and channel][8], filters2: [step][2][channel][8], fp16; features:
// [n][thread][pool row][channel half], 8 fp16 a thread.
extern "C" __global__ void __launch_bounds__(GROUPS * WARPGROUP, 1)
    features(const Pixel* __restrict__ images, const unsigned char* __restrict__ filters1,
             const unsigned char* __restrict__ filters2, uint4* __restrict__ out, int n) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 base = ptx::shared(memory);
    const int group = __shfl_sync(~0u, int(threadIdx.x) / WARPGROUP, 0);
    const int tid = threadIdx.x % WARPGROUP, lane = threadIdx.x % 32;
    const int warp = __shfl_sync(~0u, tid / 32, 0);
    const u32 maps = base + MAPS_AT + group * MAP_BYTES;
    const u32 staged = base + IMAGES_AT + group * IMAGES * IMAGE_BYTES;
    const u32 loaded = base + BARRIERS_AT, turns = loaded + 16;
    const u32 turn = turns + 8 * group, next = turns + 8 * ((group + 1) % GROUPS);

    if (threadIdx.x == 0) {
        ptx::barrier_init(loaded, 1);
        ptx::barrier_init(loaded + 8, 1);
        for (int g = 0; g < GROUPS; ++g) ptx::barrier_init(turns + 8 * g, WARPGROUP / 32);
        ptx::barrier_init_fence();
        ptx::barrier_expect(loaded, FILTER1_BYTES);
        ptx::bulk_load(base + FILTER1_AT, filters1, FILTER1_BYTES, loaded);
        ptx::barrier_expect(loaded + 8, FILTER2_BYTES);
        for (int at = 0; at < FILTER2_BYTES; at += 10 * STEP_BYTES)
            ptx::bulk_load(base + at, filters2 + at, 10 * STEP_BYTES, loaded + 8);
    }

    // A tile takes 2 x 4 pooled positions of each warp; a warp walks 3 x 3 tiles of half a map.
    const int image = warp / 2, quad = lane % 4;
    const int y = warp % 2 * 6 + lane / 16, x = lane / 4 % 4;
    const u32 cells = maps + ((y * IMAGES + image) * SIDE + x) * CELL + quad * 4;
    u32 pair[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        const int k = min(quad + 4 * m, 14);
        pair[m] = staged + image * IMAGE_BYTES + (2 * y + k / 3) * ROW_BYTES + (x + k % 3) * 4;
    }
    __syncthreads();
    if (group == GROUPS - 1 && lane == 0) ptx::barrier_arrive(next);

    const int stride = int(gridDim.x) * GROUPS * IMAGES;
    int first = (group * int(gridDim.x) + int(blockIdx.x)) * IMAGES;
    Pixels pixels;
    fetch(pixels, images, first, n, tid);
    stage(staged, pixels, tid);
    fetch(pixels, images, first + stride, n, tid);
    for (u32 round = 0; first < n; ++round, first += stride) {
        ptx::sync(1 + group, WARPGROUP);
        if (round == 0) ptx::barrier_wait(loaded, 0);
        convolve1(base + FILTER1_AT, pair, cells);
        ptx::async_fence();
        ptx::sync(1 + group, WARPGROUP);
        if (round == 0) ptx::barrier_wait(loaded + 8, 0);
        if (PASS_STEP) ptx::barrier_wait(turn, round & 1);

        float d[32 * IMAGES];
        convolve2(d, base, maps, next, lane);
        stage(staged, pixels, tid);
        fetch(pixels, images, first + 2 * stride, n, tid);
        ptx::wgmma_wait<0>();
        ptx::settle(d);
#pragma unroll
        for (int i = 0; i < IMAGES; ++i) {
            u32 mean[4];
#pragma unroll
            for (int y = 0; y < 4; ++y) {
                const int top = 4 * (2 * y * IMAGES + i), bottom = top + 4 * IMAGES;
                mean[y] = ptx::half2(
                    0.125f * pool(d[top], d[top + 1], d[bottom], d[bottom + 1]),
                    0.125f * pool(d[top + 2], d[top + 3], d[bottom + 2], d[bottom + 3]));
            }
            if (first + i < n)
                out[size_t(first + i) * WARPGROUP + tid] = {mean[0], mean[1], mean[2], mean[3]};
        }
    }
}
