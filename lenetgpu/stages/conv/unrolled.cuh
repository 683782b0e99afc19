// The tiled product W'[M][K_SIZE] x X[K_SIZE][PIXELS] of one image, unrolled on the fly: 32x32
// threads keep MAPS_EACH x PIXELS_EACH sums each. PixelAt maps a column of X to its output pixel,
// so that a caller chooses the order in which a warp walks the map.
#pragma once
#include "stages/conv/shape.cuh"

constexpr int TILE = 32;
constexpr int PIXELS_EACH = 2;
constexpr int MAP_TILES = (M + TILE * MAPS_EACH - 1) / (TILE * MAPS_EACH);
constexpr int PIXEL_TILES = (PIXELS + TILE * PIXELS_EACH - 1) / (TILE * PIXELS_EACH);

struct Pixel {
    int y, x;
};

__device__ __forceinline__ Pixel row_major(int p) { return {p / OW, p % OW}; }

// Windows of 2x2 one after another: pixels 4w .. 4w + 3 are window w.
__device__ __forceinline__ Pixel by_window(int p) {
    constexpr int WINDOWS_X = OW / 2 > 0 ? OW / 2 : 1;
    const int window = p / 4, d = p % 4;
    return {window / WINDOWS_X * 2 + d / 2, window % WINDOWS_X * 2 + d % 2};
}

__device__ __forceinline__ float unrolled_at(const float* __restrict__ x, size_t n, int k,
                                             Pixel p) {
    const int r = k / CH / S, s = k / CH % S, c = k % CH;
    return input_at(x, n, p.y * STRIDE + r - PAD, p.x * STRIDE + s - PAD, c);
}

struct ProductTile {
    size_t n;
    int m0, p0;
};

__device__ __forceinline__ ProductTile product_tile() {
    return {blockIdx.x / (MAP_TILES * PIXEL_TILES),
            int(blockIdx.x / PIXEL_TILES % MAP_TILES) * TILE * MAPS_EACH,
            int(blockIdx.x % PIXEL_TILES) * TILE * PIXELS_EACH};
}

template <Pixel (*PixelAt)(int)>
__device__ __forceinline__ void tiled_product(const float* __restrict__ x,
                                              const float* __restrict__ w, ProductTile at,
                                              float (&sums)[MAPS_EACH][PIXELS_EACH]) {
    __shared__ float weights[TILE][TILE * MAPS_EACH];   // [k][m]
    __shared__ float inputs[TILE][TILE * PIXELS_EACH];  // [k][p]
    const int tx = threadIdx.x, ty = threadIdx.y;
    for (int k0 = 0; k0 < K_SIZE; k0 += TILE) {
        const int k = k0 + ty;
#pragma unroll
        for (int i = 0; i < MAPS_EACH; ++i) {
            const int m = at.m0 + i * TILE + tx;
            weights[ty][i * TILE + tx] = k < K_SIZE && m < M ? w[k * M + m] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < PIXELS_EACH; ++j) {
            const int p = at.p0 + j * TILE + tx;
            inputs[ty][j * TILE + tx] =
                k < K_SIZE && p < PIXELS ? unrolled_at(x, at.n, k, PixelAt(p)) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < TILE; ++kk)
#pragma unroll
            for (int i = 0; i < MAPS_EACH; ++i)
#pragma unroll
                for (int j = 0; j < PIXELS_EACH; ++j)
                    sums[i][j] += weights[kk][i * TILE + ty] * inputs[kk][j * TILE + tx];
        __syncthreads();
    }
}
