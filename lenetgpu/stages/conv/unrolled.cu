// Convolution as the product W'[M][DEPTH] x X[DEPTH][PIXELS], unrolled on the fly
// (report, section 2.2). Row k of X is input (r, s, c) of every output pixel.
// conv_naive (2.2.1): one output per thread, nothing shared.
// conv_tiled (2.2.2): 32x32 threads compute 32*MAPS_EACH maps x 64 pixels of one image from
//   32-deep tiles in shared memory, MAPS_EACH x 2 outputs each; weights are loaded with threads
//   along the maps, which are contiguous in memory. Any layout in and out (2.2.4).
#include "shape.cuh"

struct Tap {
    int r, s, c;
};

__device__ __forceinline__ Tap tap_of(int k) { return {k / CH / S, k / CH % S, k % CH}; }

__device__ __forceinline__ float unrolled_at(const float* __restrict__ x, size_t n, int k, int p) {
    const Tap tap = tap_of(k);
    return input_at(x, n, p / OW * STRIDE + tap.r - PAD, p % OW * STRIDE + tap.s - PAD, tap.c);
}

#ifdef ENTRY_conv_naive
extern "C" __global__ void __launch_bounds__(THREADS)
    conv_naive(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
               long long outputs) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= outputs) return;
    const size_t n = i / (M * PIXELS);
    const int m = i / PIXELS % M, p = i % PIXELS;
    float sum = 0.0f;
    for (int k = 0; k < DEPTH; ++k) sum += unrolled_at(x, n, k, p) * w[k * M + m];
    output_at(y, n, p / OW, p % OW, m) = sum;
}
#endif

#ifdef ENTRY_conv_tiled
constexpr int TILE = 32;
constexpr int PIXELS_EACH = 2;
constexpr int MAP_TILES = (M + TILE * MAPS_EACH - 1) / (TILE * MAPS_EACH);
constexpr int PIXEL_TILES = (PIXELS + TILE * PIXELS_EACH - 1) / (TILE * PIXELS_EACH);

extern "C" __global__ void __launch_bounds__(TILE* TILE)
    conv_tiled(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y) {
    __shared__ float weights[TILE][TILE * MAPS_EACH];   // [k][m]
    __shared__ float inputs[TILE][TILE * PIXELS_EACH];  // [k][p]
    const int tx = threadIdx.x, ty = threadIdx.y;
    const size_t n = blockIdx.x / (MAP_TILES * PIXEL_TILES);
    const int m0 = blockIdx.x / PIXEL_TILES % MAP_TILES * TILE * MAPS_EACH;
    const int p0 = blockIdx.x % PIXEL_TILES * TILE * PIXELS_EACH;
    float sums[MAPS_EACH][PIXELS_EACH] = {};
    for (int k0 = 0; k0 < DEPTH; k0 += TILE) {
        const int k = k0 + ty;
#pragma unroll
        for (int i = 0; i < MAPS_EACH; ++i) {
            const int m = m0 + i * TILE + tx;
            weights[ty][i * TILE + tx] = k < DEPTH && m < M ? w[k * M + m] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < PIXELS_EACH; ++j) {
            const int p = p0 + j * TILE + tx;
            inputs[ty][j * TILE + tx] = k < DEPTH && p < PIXELS ? unrolled_at(x, n, k, p) : 0.0f;
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
#pragma unroll
    for (int i = 0; i < MAPS_EACH; ++i)
#pragma unroll
        for (int j = 0; j < PIXELS_EACH; ++j) {
            const int m = m0 + i * TILE + ty, p = p0 + j * TILE + tx;
            if (m < M && p < PIXELS) output_at(y, n, p / OW, p % OW, m) = sums[i][j];
        }
}
#endif
