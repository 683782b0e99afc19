// Pixels of an image to its pooled maps at transform points, by one warp. conv1's rows are windows
// in pairs of output rows, as in mma/conv1.cuh, but a lane takes six side by side in half a line,
// so that with two shuffles it has the inputs of a tile; K is ordered as in wgmma_winograd.
#pragma once
#include "gpu/ptx/global.cuh"
#include "gpu/ptx/math.cuh"
#include "gpu/ptx/mma.cuh"
#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/shared_anew.cuh"
#include "stages/fused/wgmma_winograd/transform.cuh"

using ptx::u32;

constexpr int WARP = 32;
constexpr int VEC_BYTES = 16;                              // bytes: 8 fp16
constexpr int PIXELS = 28 * 28, ROW_BYTES = 28 * 2;        // in shared memory: fp16
constexpr int SIDE = 12, ACROSS = SIDE / 2;                // pooled; windows of a lane in a line
constexpr int PLANES = 4;                                  // of 8 channels
constexpr int BAND = 4, BANDS = SIDE / BAND;               // lines at a time, a lane half of one

// Maps of an image: [band][point][tile][line][4 vectors]. A vector is what a lane has at a point: a
// pair of channels of each plane. Images lie a vector further apart, so that ldmatrix, whose rows are
// images, uses every bank once. The last band's memory holds the image's pixels until it is written.
constexpr int LINE_BYTES = PLANES * VEC_BYTES, TILE_BYTES = BAND * LINE_BYTES;
constexpr int POINT_BYTES = 2 * TILE_BYTES, BAND_BYTES = POINTS * POINT_BYTES;
constexpr int IMAGE_BYTES = BANDS * BAND_BYTES + VEC_BYTES;
constexpr int PIXELS_AT = (BANDS - 1) * BAND_BYTES;

static_assert(PIXELS * 2 <= BAND_BYTES, "pixels lie where the last band will");
static_assert(IMAGE_BYTES / VEC_BYTES % 8 == 1, "eight images, eight groups of banks");

#if UINT8_PIXELS
using Pixel = unsigned char;
using Pixels8 = uint2;                                     // 8 pixels
__device__ __forceinline__ Pixels8 load(const Pixel* from) {
    return ptx::load_constant(reinterpret_cast<const uint2*>(from));
}
// Bytes become fp16, exactly byte / 256: 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ u32 to_fp16(u32 bytes, u32 which) {
    return ptx::multiply_add2(__byte_perm(bytes, 0x64646464, which), 0x1c001c00, 0xc400c400);
}
__device__ __forceinline__ uint4 to_fp16(Pixels8 p) {
    return {to_fp16(p.x, 0x4140), to_fp16(p.x, 0x4342), to_fp16(p.y, 0x4140), to_fp16(p.y, 0x4342)};
}
#else
using Pixel = float;
struct Pixels8 {
    uint4 low, high;
};
__device__ __forceinline__ Pixels8 load(const Pixel* from) {
    const uint4* words = reinterpret_cast<const uint4*>(from);
    return {ptx::load_constant(words), ptx::load_constant(words + 1)};
}
__device__ __forceinline__ u32 to_fp16(u32 a, u32 b) {
    return ptx::half2(__uint_as_float(a), __uint_as_float(b));
}
__device__ __forceinline__ uint4 to_fp16(Pixels8 p) {
    return {to_fp16(p.low.x, p.low.y), to_fp16(p.low.z, p.low.w), to_fp16(p.high.x, p.high.y),
            to_fp16(p.high.z, p.high.w)};
}
#endif

// An image on its way to shared memory, by way of a warp's registers.
struct PixelVectors {
    static constexpr int ALL = PIXELS / 8, EACH = (ALL + WARP - 1) / WARP;
    Pixels8 vector[EACH];

    __device__ __forceinline__ void fetch(const Pixel* image, int lane) {
#pragma unroll
        for (int k = 0; k < EACH; ++k)
            if (lane + k * WARP < ALL) vector[k] = load(image + (lane + k * WARP) * 8);
    }
    __device__ __forceinline__ void stage(u32 to, int lane) const {
#pragma unroll
        for (int k = 0; k < EACH; ++k)
            if (lane + k * WARP < ALL)
                ptx::store_shared(to + (lane + k * WARP) * VEC_BYTES, to_fp16(vector[k]));
    }
};

// Pixel pairs under a window: of filter row lane % 4, and of the fourth row what the lane's K slot
// has. A window's are loaded anew, though its neighbour has two of three: ptxas copies what two
// products have in different places once for each product.
using Operand1 = uint4[2];

struct Line {
    u32 row, slot;

    // Of the windows whose first pixel lies at `at`.
    __device__ __forceinline__ Line(u32 at, int quad)
        : row(at + quad * ROW_BYTES), slot(at + 4 * ROW_BYTES + min(quad, 2) * 4) {}
    __device__ __forceinline__ void load(Operand1& a, int x) const {
        const u32 first = row + x * 4, lower = first + ROW_BYTES, fourth = slot + x * 4;
        const auto pair = [](u32 from) { return ptx::load_shared_anew(from); };
        a[0] = {pair(first), pair(lower), pair(first + 4), pair(lower + 4)};
        a[1] = {pair(first + 8), pair(lower + 8), pair(fourth), pair(fourth + ROW_BYTES)};
    }
};

// D[8 windows at dy 0, then at dy 1][8 channels], by plane and dx.
using Tile1 = float[PLANES][2][4];
using Filter1 = uint4[PLANES][2];

__device__ __forceinline__ void multiply1(Tile1& d, const Operand1& a, const Filter1& filter) {
#pragma unroll
    for (int i = 0; i < 2 * PLANES; ++i)
        ptx::mma_start(d[i / 2][i % 2], a[0], ptx::low2(filter[i / 2][i % 2]));
#pragma unroll
    for (int i = 0; i < 2 * PLANES; ++i)
        ptx::mma_add(d[i / 2][i % 2], a[1], ptx::high2(filter[i / 2][i % 2]));
}
// Two channels' sums of four ReLUs.
__device__ __forceinline__ u32 pool1(const float (&d)[2][4]) {
    return ptx::add2(
        ptx::add2(ptx::half2_relu(d[0][0], d[0][1]), ptx::half2_relu(d[1][0], d[1][1])),
        ptx::add2(ptx::half2_relu(d[0][2], d[0][3]), ptx::half2_relu(d[1][2], d[1][3])));
}
// The 8 inputs of a tile: 6 are this lane's, 2 those of the lane with the other half of its line.
__device__ __forceinline__ void inputs_of(u32 (&d)[POINTS], const u32 (&own)[ACROSS], bool right) {
    const u32 first = __shfl_xor_sync(~0u, right ? own[0] : own[4], 16);
    const u32 second = __shfl_xor_sync(~0u, right ? own[1] : own[5], 16);
    d[0] = right ? first : own[0], d[1] = right ? second : own[1];
#pragma unroll
    for (int i = 2; i < 6; ++i) d[i] = right ? own[i - 2] : own[i];
    d[6] = right ? own[4] : first, d[7] = right ? own[5] : second;
}

// filters1: [plane][lane][dx][K step][4]. `image` has its pixels, staged by this warp; then its
// maps.
__device__ __forceinline__ void convolve1(u32 image, const Filter1& filter, int lane) {
    const int quad = lane % 4, line = lane / 4 % BAND, half = lane / 16;
    const u32 pixels = image + PIXELS_AT + 2 * line * ROW_BYTES + half * (ACROSS * 4);
    const u32 to = image + half * TILE_BYTES + line * LINE_BYTES + quad * VEC_BYTES;
#pragma unroll 1
    for (int band = 0; band < BANDS; ++band) {
        const Line windows(pixels + band * (2 * BAND * ROW_BYTES), quad);
        Operand1 a[2];
        Tile1 d[2];
        u32 pooled[PLANES][ACROSS], values[PLANES][POINTS];
        windows.load(a[0], 0);
        multiply1(d[0], a[0], filter);
        windows.load(a[1], 1);
#pragma unroll
        for (int x = 0; x < ACROSS; ++x) {
            const int next = x + 1, ahead = x + 2;
            if (next < ACROSS) multiply1(d[next % 2], a[next % 2], filter);
            if (ahead < ACROSS) windows.load(a[ahead % 2], ahead);
#pragma unroll
            for (int plane = 0; plane < PLANES; ++plane)
                pooled[plane][x] = pool1(d[x % 2][plane]);
        }
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
            u32 inputs[POINTS];
            inputs_of(inputs, pooled[plane], half);
            transform_fp16(inputs, values[plane]);
        }
        __syncwarp();  // the last band lies over the pixels
#pragma unroll
        for (int p = 0; p < POINTS; ++p)
            ptx::store_shared(to + band * BAND_BYTES + (p < 2 ? 1 - p : p) * POINT_BYTES,
                              uint4{values[0][p], values[1][p], values[2][p], values[3][p]});
    }
}
