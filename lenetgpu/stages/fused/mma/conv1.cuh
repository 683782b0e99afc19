// Pixels to conv1's pooled maps in shared memory on mma.sync, SHARE warps an image: vectors of 8
// channels, [channel/8][x % 2][y][x / 2][8], fp16, with PARTS 2 as high and low. GEMM rows (M)
// are pixels of pooled windows, in pairs, so that one thread has a window's four sums.
#pragma once
#include "gpu/ptx/global.cuh"
#include "gpu/ptx/math.cuh"
#include "gpu/ptx/mma.cuh"
#include "gpu/ptx/shared.cuh"

using ptx::u32;

constexpr int WARP = 32;
constexpr int SIDE = 28, PIXELS = SIDE * SIDE, ROW_BYTES = SIDE * 2;
constexpr int PIXEL_BYTES = PIXELS * 2;                    // a part of an image: fp16
constexpr int VEC_BYTES = 16;                              // bytes: 8 fp16
constexpr int POOLED = 12, HALF_ROW = POOLED / 2 * VEC_BYTES;  // columns of one parity lie together
constexpr int PARITY = POOLED * HALF_ROW, PLANE = 2 * PARITY;
constexpr int MAP_BYTES = 4 * PLANE;                       // of a part
constexpr int PIXEL_PARTS = UINT8_PIXELS ? 1 : PARTS;

static_assert(PARTS == 1 || PARTS == 2, "fp16, or high and low");
static_assert(SHARE == 1 || SHARE == 2, "a warp takes an image or half of its rows");

#if UINT8_PIXELS
using Pixel = unsigned char;
using Pixels8 = uint2;                                     // 8 pixels
__device__ __forceinline__ Pixels8 load(const Pixel* from) {
    return __ldg(reinterpret_cast<const uint2*>(from));
}
// Bytes become fp16 exactly: 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ void stage(u32 to, Pixels8 p) {
    constexpr u32 K = 0x64006400, B = 0x64646464;
    ptx::store_shared(to, uint4{ptx::subtract2(__byte_perm(p.x, B, 0x4140), K),
                                ptx::subtract2(__byte_perm(p.x, B, 0x4342), K),
                                ptx::subtract2(__byte_perm(p.y, B, 0x4140), K),
                                ptx::subtract2(__byte_perm(p.y, B, 0x4342), K)});
}
#else
using Pixel = float;
struct Pixels8 {
    float4 a, b;
};
__device__ __forceinline__ Pixels8 load(const Pixel* from) {
    const float4* words = reinterpret_cast<const float4*>(from);
    return {__ldg(words), __ldg(words + 1)};
}
__device__ __forceinline__ void stage(u32 to, Pixels8 p) {
    p.a.x *= PIXEL_SCALE, p.a.y *= PIXEL_SCALE, p.a.z *= PIXEL_SCALE, p.a.w *= PIXEL_SCALE;
    p.b.x *= PIXEL_SCALE, p.b.y *= PIXEL_SCALE, p.b.z *= PIXEL_SCALE, p.b.w *= PIXEL_SCALE;
    const uint4 high{ptx::half2(p.a.x, p.a.y), ptx::half2(p.a.z, p.a.w),
                     ptx::half2(p.b.x, p.b.y), ptx::half2(p.b.z, p.b.w)};
    ptx::store_shared(to, high);
    if (PIXEL_PARTS == 2)
        ptx::store_shared(
            to + PIXEL_BYTES,
            uint4{ptx::rest2(p.a.x, p.a.y, high.x), ptx::rest2(p.a.z, p.a.w, high.y),
                  ptx::rest2(p.b.x, p.b.y, high.z), ptx::rest2(p.b.z, p.b.w, high.w)});
}
#endif
constexpr int PIXEL_VECTORS = PIXELS / 8, VECTORS_APART = SHARE * WARP;

// Twice the sum of four ReLUs.
__device__ __forceinline__ float relu_sum(float a, float b, float c, float d) {
    return ((a + fabsf(a)) + (b + fabsf(b))) + ((c + fabsf(c)) + (d + fabsf(d)));
}
// Windows of two neighbouring channels: rows g and g + 8 of two tiles.
__device__ __forceinline__ float2 pool(const float (&a)[4], const float (&b)[4], float scale) {
    return {scale * relu_sum(a[0], a[2], b[0], b[2]), scale * relu_sum(a[1], a[3], b[1], b[3])};
}

// conv1: D[window g at dy 0, 1][8 channels at dx 0, 1, 4 times]; K: 5 rows x 3 pixel pairs and one
// pair without weight. A tile is 2 x 4 windows of one column parity, so that their vectors lie in
// different banks; an image has 2 parities x 3 x 3. filters1: [part][channel/8][lane][dx][8 K].
constexpr int TILES1 = 3 * (3 - SHARE);                    // a third of a warp's, from above
using Pixels1 = uint4[PIXEL_PARTS][2];
using Filter1 = uint4[4][2];
struct Tile1 {
    float d[4][2][4];

    template <bool START>
    __device__ __forceinline__ void add(const uint4 (&a)[2], const Filter1& b) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (START)
                ptx::mma_start(d[i / 2][i % 2], a[0], ptx::low2(b[i / 2][i % 2]));
            else
                ptx::mma_add(d[i / 2][i % 2], a[0], ptx::low2(b[i / 2][i % 2]));
        }
#pragma unroll
        for (int i = 0; i < 8; ++i)
            ptx::mma_add(d[i / 2][i % 2], a[1], ptx::high2(b[i / 2][i % 2]));
    }
    __device__ __forceinline__ void multiply(const Pixels1& a, const Filter1 (&b)[PARTS]) {
        add<true>(a[0], b[PARTS - 1]);
        if (PIXEL_PARTS == 2) add<false>(a[PIXEL_PARTS - 1], b[0]);
        if (PARTS == 2) add<false>(a[0], b[0]);
    }
    __device__ __forceinline__ void store(u32 vec, float scale) const {
#pragma unroll
        for (int plane = 0; plane < 4; ++plane) {
            const float2 mean = pool(d[plane][0], d[plane][1], scale);
            const u32 high = ptx::half2(mean.x, mean.y);
            ptx::store_shared(vec + plane * PLANE, high);
            if (PARTS == 2)
                ptx::store_shared(vec + plane * PLANE + MAP_BYTES,
                                  ptx::rest2(mean.x, mean.y, high));
        }
    }
};

__device__ __forceinline__ void load1(Pixels1& a, const u32 (&pair)[4], int down, int tile) {
    const u32 from =
        (down + tile / TILES1) * (8 * ROW_BYTES) + tile % TILES1 / 3 * 4 + tile % 3 * 16;
#pragma unroll
    for (int p = 0; p < PIXEL_PARTS; ++p)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const u32 low = pair[2 * k] + from + p * PIXEL_BYTES;
            const u32 high = pair[2 * k + 1] + from + p * PIXEL_BYTES;
            a[p][k] = {ptx::load_shared(low), ptx::load_shared(low + ROW_BYTES),
                       ptx::load_shared(high), ptx::load_shared(high + ROW_BYTES)};
        }
}

// A tile is multiplied, and the pixels of the one after it loaded, before the last is pooled.
__device__ __forceinline__ void convolve1(u32 pixels, u32 vecs, const uint4* filters1,
                                          float scale, int parity, int lane) {
    const int g = lane / 4, quad = lane % 4, x = 2 * (g % 2), y = g / 2;
    u32 pair[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        const int k = min(quad + 4 * m, 14);
        pair[m] = pixels + (2 * y + k / 3) * ROW_BYTES + (x + k % 3 + parity) * 4;
    }
    const u32 to = vecs + parity * PARITY + y * HALF_ROW + g % 2 * VEC_BYTES + quad * 4;
    Filter1 filter[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS * 8; ++i)
        filter[i / 8][i / 2 % 4][i % 2] =
            ptx::load_here(filters1 + (i / 2 * WARP + lane) * 2 + i % 2);

    Pixels1 a;
    Tile1 now, then;
    load1(a, pair, 0, 0);
    now.multiply(a, filter);
    load1(a, pair, 0, 1);
#pragma unroll 1
    for (int down = 0; down < 3; ++down) {
#pragma unroll
        for (int tile = 0; tile < TILES1; ++tile) {
            if (tile + 1 < TILES1 || down < 2) then.multiply(a, filter);
            if (tile + 2 < TILES1 || down < 2) load1(a, pair, down, tile + 2);
            const u32 offset = down * (4 * HALF_ROW) + tile % 3 * (2 * VEC_BYTES) + tile / 3 * PARITY;
            now.store(to + offset, scale);
            now = then;
        }
    }
}
