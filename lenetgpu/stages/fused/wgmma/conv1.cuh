// Pixels to conv1 on wgmma for kernels whose warpgroups carry IMAGES images each: A is pixel pairs
// from registers (rows: positions), B the filters, 32 channels at 2 output columns. With SPLIT the
// filters, and pixels that are not bytes, are fp16 high + low, scaled: low products first, then
// high * high.
#pragma once
#include "gpu/ptx/global.cuh"
#include "gpu/ptx/math.cuh"
#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/wgmma.cuh"

using ptx::u32;
using ptx::u64;

constexpr int WARPGROUP = 128;
constexpr int ROW_BYTES = 28 * 2, PIXELS = 28 * 28;  // an image in shared memory: fp16
constexpr int IMAGE_BYTES = PIXELS * 2, PIXEL_VECTORS = IMAGES * PIXELS / 8;
constexpr int SIDE = 12, VECS = SIDE * SIDE;  // pooled conv1 map
constexpr int VEC_BYTES = 16;                  // bytes
constexpr int TILES = IMAGES * VECS / 32;      // 32 pooled positions each
constexpr int STEP1_BYTES = 64 * 16 * 2, FILTER1_PART_BYTES = 2 * STEP1_BYTES;
constexpr int PARTS = SPLIT ? 2 : 1, FILTER1_BYTES = PARTS * FILTER1_PART_BYTES;
constexpr int PIXEL_PARTS = SPLIT && !UINT8_PIXELS ? 2 : 1;
constexpr int STAGED_BYTES = IMAGES * IMAGE_BYTES;  // one part of a warpgroup's pixels

static_assert(IMAGES == 2, "a warp takes half a map");
static_assert(TILE % 8 == 0 && TILE % IMAGES == 0, "a tile is whole cores, a round within one");

#if UINT8_PIXELS
using Pixel = unsigned char;
struct Pixels8 {
    u32 low = 0, high = 0;
};
__device__ __forceinline__ Pixels8 load(const Pixel* p) {
    const uint2 words = ptx::load_constant(reinterpret_cast<const uint2*>(p));
    return {words.x, words.y};
}
// Bytes become fp16, exactly byte / 256: 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ uint2 to_fp16(u32 bytes) {
    constexpr u32 BIAS = 0x64646464, SCALE = 0x1c001c00, MINUS_4 = 0xc400c400;
    return {ptx::multiply_add2(__byte_perm(bytes, BIAS, 0x4140), SCALE, MINUS_4),
            ptx::multiply_add2(__byte_perm(bytes, BIAS, 0x4342), SCALE, MINUS_4)};
}
__device__ __forceinline__ uint4 to_fp16(Pixels8 p) {
    const uint2 low = to_fp16(p.low), high = to_fp16(p.high);
    return {low.x, low.y, high.x, high.y};
}
#else
using Pixel = float;
struct Pixels8 {
    uint4 low{}, high{};
};
__device__ __forceinline__ Pixels8 load(const Pixel* p) {
    const uint4* words = reinterpret_cast<const uint4*>(p);
    return {ptx::load_constant(words), ptx::load_constant(words + 1)};
}
__device__ __forceinline__ float scaled(u32 pixel) {
    return (SPLIT ? 256.0f : 1.0f) * __uint_as_float(pixel);
}
__device__ __forceinline__ u32 pair(u32 a, u32 b) {
    return ptx::half2(scaled(a), scaled(b));
}
__device__ __forceinline__ u32 rest(u32 a, u32 b, u32 pair) {
    return ptx::rest2(scaled(a), scaled(b), pair);
}
__device__ __forceinline__ uint4 to_fp16(Pixels8 p) {
    return {pair(p.low.x, p.low.y), pair(p.low.z, p.low.w), pair(p.high.x, p.high.y),
            pair(p.high.z, p.high.w)};
}
__device__ __forceinline__ uint4 rest(Pixels8 p, uint4 h) {
    return {rest(p.low.x, p.low.y, h.x), rest(p.low.z, p.low.w, h.y), rest(p.high.x, p.high.y, h.z),
            rest(p.high.z, p.high.w, h.w)};
}
#endif

constexpr int VECTORS_EACH = (PIXEL_VECTORS + WARPGROUP - 1) / WARPGROUP;
struct Pixels {
    Pixels8 vector[VECTORS_EACH];
};

// Vectors of 8 pixels, the images of a warpgroup end to end; zeros past the last image.
__device__ __forceinline__ void fetch(Pixels& p, const Pixel* images, int first, int n, int tid) {
#pragma unroll
    for (int k = 0; k < VECTORS_EACH; ++k) {
        const int at = tid + k * WARPGROUP;
        p.vector[k] = Pixels8{};
        if (at < PIXEL_VECTORS && first + at / (PIXELS / 8) < n)
            p.vector[k] = load(images + size_t(first) * PIXELS + at * 8);
    }
}

__device__ __forceinline__ void stage(u32 to, const Pixels& p, int tid) {
#pragma unroll
    for (int k = 0; k < VECTORS_EACH; ++k) {
        const int at = tid + k * WARPGROUP;
        if (at >= PIXEL_VECTORS) continue;
        const uint4 high = to_fp16(p.vector[k]);
        ptx::store_shared(to + at * VEC_BYTES, high);
#if SPLIT && !UINT8_PIXELS
        ptx::store_shared(to + STAGED_BYTES + at * VEC_BYTES, rest(p.vector[k], high));
#endif
    }
}

// D[position][8 channels x 2 output columns, 4 times]; rows g and g + 8 of a warp are the upper and
// the lower output row, so one thread has a pooling window. K: 5 rows x 3 pixel pairs, and one
// pair without weight. pair: what this thread reads of its first tile.
struct Tile1 {
    float d[32];
    uint4 a[PIXEL_PARTS][2];
};
__device__ __forceinline__ void multiply1(Tile1& tile, u64 filters, const u32 (&pair)[4], int at) {
    const int from = at / 3 * 4 * ROW_BYTES + at % 3 * 16;
#pragma unroll
    for (int i = 0; i < 2 * PIXEL_PARTS; ++i) {
        const u32 part = from + i / 2 * STAGED_BYTES;
        const u32 low = pair[i % 2 * 2] + part, high = pair[i % 2 * 2 + 1] + part;
        tile.a[i / 2][i % 2] = {ptx::load_shared(low), ptx::load_shared(low + ROW_BYTES),
                                ptx::load_shared(high), ptx::load_shared(high + ROW_BYTES)};
    }
    ptx::wgmma_fence();
    constexpr int PRODUCTS = PARTS + PIXEL_PARTS - 1;
#pragma unroll
    for (int i = 0; i < 2 * PRODUCTS; ++i) {
        const int product = PRODUCTS - 1 - i / 2, step = i % 2;  // high * high, high * low, low * high
        const u64 b = filters + ((product == 1) * FILTER1_PART_BYTES + step * STEP1_BYTES) / 16;
        const uint4& a = tile.a[PIXEL_PARTS == 2 && product == 2][step];
        if (i == 0)
            ptx::wgmma<false>(tile.d, a, b);
        else
            ptx::wgmma<true>(tile.d, a, b);
    }
    ptx::wgmma_commit();
}
// `pool(sums, at)` takes tile `at`: of 4 planes, 2 channels at (dy, dx) = [2 * dx + dy].
template <typename Pool>
__device__ __forceinline__ void convolve1(u32 filters, const u32 (&pair)[4], Pool pool) {
    const u64 b = ptx::operand(filters, 64 * VEC_BYTES, 8 * VEC_BYTES);
    Tile1 even, odd;
    multiply1(even, b, pair, 0);
#pragma unroll
    for (int at = 0; at < TILES; ++at) {
        if (at + 1 < TILES) {
            multiply1(at % 2 ? even : odd, b, pair, at + 1);
            ptx::wgmma_wait<1>();
        } else {
            ptx::wgmma_wait<0>();
        }
        Tile1& tile = at % 2 ? odd : even;
        ptx::settle(tile.d);
        pool(tile.d, at);
    }
}
// Two channels' sums of four ReLUs.
__device__ __forceinline__ u32 pool_pair(const float* d) {
    return ptx::add2(ptx::add2(ptx::half2_relu(d[0], d[1]), ptx::half2_relu(d[4], d[5])),
                     ptx::add2(ptx::half2_relu(d[2], d[3]), ptx::half2_relu(d[6], d[7])));
}
// Which of the pixel pairs (3 * row + pair) are K's pair 4 * m + q, four bits each, and where they
// stand so that no two of a warp's loads use the same bank.
constexpr u64 PAIRS_IN_LINE = 0xeedcba9876543210, PAIRS_APART = 0x6630eb85da72c941;
// Where a thread's first pooled position lies within [12][IMAGES][12], and the pixel pairs it
// reads.
struct Offsets {
    u32 vec;
    u32 pair[4];
};
__device__ __forceinline__ Offsets offsets_of(u32 images, int warp, int lane,
                                          u64 pairs = PAIRS_IN_LINE) {
    const int image = warp * IMAGES / 4, quad = lane % 4;
    const int y = warp * 3 * IMAGES % SIDE + lane / 16, x = lane / 4 % 4;
    Offsets offsets;
    offsets.vec = ((y * IMAGES + image) * SIDE + x) * VEC_BYTES;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        const int k = int(pairs >> 16 * m >> 4 * quad) & 15;
        offsets.pair[m] =
            images + image * IMAGE_BYTES + (2 * y + k / 3) * ROW_BYTES + (x + k % 3) * 4;
    }
    return offsets;
}
// The first vector of tile `at` after that of tile 0.
__device__ __forceinline__ constexpr u32 tile_vec(int at) {
    return (at / 3 * 2 * IMAGES * SIDE + at % 3 * 4) * VEC_BYTES;
}

// Where the 8 features of a thread go: [n / TILE][thread / 8][part][image][thread % 8 ^ image % 8],
// so that 64 features of a tile lie together, rows of 128 bytes as wgmma's swizzle has them.
__device__ __forceinline__ size_t feature_vec(int image, int tid, int part = 0) {
    const int tile = image / TILE, row = image % TILE;
    const size_t slice = (size_t(tile) * (WARPGROUP / 8) + tid / 8) * PARTS + part;
    return (slice * TILE + row) * 8 + (tid ^ row) % 8;
}
// Zeros for the images that the last tile has past the last image, from `first` on in strides.
__device__ __forceinline__ void clear_rest(uint4* features, int first, int stride, int n, int tid) {
    for (int image = first; image < (n + TILE - 1) / TILE * TILE; image += stride)
        for (int part = 0; part < PARTS; ++part) features[feature_vec(image, tid, part)] = {};
}
