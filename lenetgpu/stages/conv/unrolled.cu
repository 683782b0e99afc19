// Convolution as the product W'[M][K_SIZE] x X[K_SIZE][PIXELS], unrolled on the fly
// (report, section 2.2). Row k of X is input (r, s, c) of every output pixel.
// conv_naive (2.2.1): one output per thread, nothing shared.
// conv_tiled (2.2.2): 32x32 threads compute 32*MAPS_EACH maps x 64 pixels of one image from
//   32-deep tiles in shared memory, MAPS_EACH x 2 outputs each; weights are loaded with threads
//   along the maps, which are contiguous in memory. Any layout in and out (2.2.4).
// conv_constant (2.2.3): as conv_tiled, with `rows` rows of W' in constant memory, from row
//   `first` on; a launch adds to y what the launches before it left, unless `first` is 0.
#include "stages/conv/unrolled.cuh"

#ifdef ENTRY_conv_naive
extern "C" __global__ void __launch_bounds__(THREADS)
    conv_naive(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
               long long outputs) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= outputs) return;
    const size_t n = i / (M * PIXELS);
    const int m = i / PIXELS % M, p = i % PIXELS;
    float sum = 0.0f;
    for (int k = 0; k < K_SIZE; ++k) sum += unrolled_at(x, n, k, row_major(p)) * w[k * M + m];
    output_at(y, n, p / OW, p % OW, m) = sum;
}
#endif

#ifdef ENTRY_conv_tiled
extern "C" __global__ void __launch_bounds__(TILE* TILE)
    conv_tiled(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y) {
    const ProductTile at = product_tile();
    float sums[MAPS_EACH][PIXELS_EACH] = {};
    tiled_product<row_major>(x, w, at, sums);
#pragma unroll
    for (int i = 0; i < MAPS_EACH; ++i)
#pragma unroll
        for (int j = 0; j < PIXELS_EACH; ++j) {
            const int m = at.m0 + i * TILE + threadIdx.y, p = at.p0 + j * TILE + threadIdx.x;
            if (m < M && p < PIXELS) output_at(y, at.n, p / OW, p % OW, m) = sums[i][j];
        }
}
#endif

#ifdef ENTRY_conv_constant
static_assert(PART_ROWS * M * 4 <= 64 * 1024, "constant memory holds 64 KiB");
__constant__ float part[PART_ROWS * M];

extern "C" __global__ void __launch_bounds__(TILE* TILE)
    conv_constant(const float* __restrict__ x, float* __restrict__ y, int first, int rows) {
    __shared__ float inputs[TILE][TILE * PIXELS_EACH];  // [k][p]
    const ProductTile at = product_tile();
    const int tx = threadIdx.x, ty = threadIdx.y;
    float sums[MAPS_EACH][PIXELS_EACH] = {};
    for (int k0 = 0; k0 < rows; k0 += TILE) {
#pragma unroll
        for (int j = 0; j < PIXELS_EACH; ++j) {
            const int p = at.p0 + j * TILE + tx, k = k0 + ty;
            inputs[ty][j * TILE + tx] =
                k < rows && p < PIXELS ? unrolled_at(x, at.n, first + k, row_major(p)) : 0.0f;
        }
        __syncthreads();
        const int deep = min(TILE, rows - k0);
        for (int kk = 0; kk < deep; ++kk)
#pragma unroll
            for (int i = 0; i < MAPS_EACH; ++i) {
                const int m = at.m0 + i * TILE + ty;
                const float weight = part[(k0 + kk) * M + (m < M ? m : 0)];
#pragma unroll
                for (int j = 0; j < PIXELS_EACH; ++j)
                    sums[i][j] += weight * inputs[kk][j * TILE + tx];
            }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < MAPS_EACH; ++i)
#pragma unroll
        for (int j = 0; j < PIXELS_EACH; ++j) {
            const int m = at.m0 + i * TILE + ty, p = at.p0 + j * TILE + tx;
            if (m >= M || p >= PIXELS) continue;
            float& out = output_at(y, at.n, p / OW, p % OW, m);
            out = first == 0 ? sums[i][j] : out + sums[i][j];
        }
}
#endif
