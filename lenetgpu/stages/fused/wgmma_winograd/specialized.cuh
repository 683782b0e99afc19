// Shared by the warp-specialized kernels: three producer warpgroups convolve a band of pooled lines
// each; the consumer warpgroup multiplies and has all outputs of an image in a thread.
#pragma once
#include "stages/fused/wgmma_winograd/conv2.cuh"

constexpr int BAND = 4, BANDS = SIDE / BAND;  // pooled lines, a warp one of all images
constexpr int BAND_ROWS = 2 * BAND + 4;       // of pixels, under a band
constexpr int BAND_BYTES = BAND_ROWS * ROW_BYTES, BAND_PIXELS = BAND_ROWS * 28;
constexpr int LINE_BYTES = BATCH * 2 * VEC_BYTES;  // maps: [channel/8][12 rows][image][tile]
constexpr int GROUPS = BANDS + 1;

static_assert(BATCH == 4 && SIDE % BAND == 0, "a line of all images is a warp's");
static_assert(BAND_PIXELS % 8 == 0 && 2 * BAND * 28 % 8 == 0, "a band is whole vectors");

// Two of `a` and `b` change places with the lane `mask` away: `upper` keeps its b, the other its a.
__device__ __forceinline__ void exchange(uint4& a, uint4& b, int mask, bool upper) {
    const uint4 away = upper ? a : b;
    const uint4 got = {__shfl_xor_sync(~0u, away.x, mask), __shfl_xor_sync(~0u, away.y, mask),
                       __shfl_xor_sync(~0u, away.z, mask), __shfl_xor_sync(~0u, away.w, mask)};
    (upper ? a : b) = got;
}
// Images for columns: lane % 4 has had an image's columns, and gets its own of all images.
__device__ __forceinline__ void exchange(uint4 (&of)[BATCH], int lane) {
    exchange(of[0], of[1], 1, lane & 1);
    exchange(of[2], of[3], 1, lane & 1);
    exchange(of[0], of[2], 2, lane & 2);
    exchange(of[1], of[3], 2, lane & 2);
}
