// The unrolled product W'[M][K_SIZE] x X[K_SIZE][PIXELS] with the course report's launch: a block of
// 32x32 threads an image, which walks the product tile by tile (section 2.2, tables 5 to 7, fig. 6).
// conv_image_naive (2.2.1): a thread an output at a time, nothing shared.
// conv_image_tiled (2.2.2): EACH sub-masks and EACH sub-images of 32x32 in shared memory, EACH x EACH
//   outputs a thread. TRANSPOSED: thread (x, y) loads element [x][y] of a sub-mask, so that a warp
//   reads neighbours of memory and stores down a column; else it loads [y][x].
// conv_image_constant (2.2.3): W' in constant memory.
// Pointers are plain, as in NVVP's list: y might be w, so that W' is read for each tile of pixels.
// Any layout in and out: QUAD out is 2.2.4's. From -D EACH, TRANSPOSED, and MIN_BLOCKS (per SM).
#include "stages/conv/course/plain.cuh"

constexpr int TILE = 32;

__device__ __forceinline__ float unrolled(const float* x, size_t n, int k, int p) {
    const int r = k / CH / S, s = k / CH % S;
    return plain_input(x, n, p / OW * STRIDE + r - PAD, p % OW * STRIDE + s - PAD, k % CH);
}

#ifdef ENTRY_conv_image_naive
extern "C" __global__ void __launch_bounds__(TILE* TILE, 1)
    conv_image_naive(const float* x, const float* w, float* y) {
    for (int m = threadIdx.y; m < M; m += TILE)
        for (int p = threadIdx.x; p < PIXELS; p += TILE) {
            float sum = 0.0f;
            for (int k = 0; k < K_SIZE; ++k) sum += w[k * M + m] * unrolled(x, blockIdx.x, k, p);
            plain_output(y, blockIdx.x, p / OW, p % OW, m) = sum;
        }
}
#else
constexpr int SIDE = TILE * EACH;  // maps and pixels of a step

struct Step {
    int m, p;
};

__device__ __forceinline__ void load_images(float (*images)[TILE][TILE], const float* x, int k,
                                            int p0) {
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const int p = p0 + j * TILE + threadIdx.x;
        images[j][threadIdx.y][threadIdx.x] =
            k < K_SIZE && p < PIXELS ? unrolled(x, blockIdx.x, k, p) : 0.0f;
    }
}

__device__ __forceinline__ void store(float* y, Step at, float (&sums)[EACH][EACH]) {
#pragma unroll
    for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const int m = at.m + i * TILE + threadIdx.y, p = at.p + j * TILE + threadIdx.x;
            if (m < M && p < PIXELS) plain_output(y, blockIdx.x, p / OW, p % OW, m) = sums[i][j];
        }
}
#endif

#ifdef ENTRY_conv_image_tiled
extern "C" __global__ void __launch_bounds__(TILE* TILE, MIN_BLOCKS)
    conv_image_tiled(const float* x, const float* w, float* y) {
    __shared__ float masks[EACH][TILE][TILE];   // [m][k]
    __shared__ float images[EACH][TILE][TILE];  // [k][p]
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int mm = TRANSPOSED ? tx : ty, mk = TRANSPOSED ? ty : tx;
    for (Step at = {0, 0}; at.m < M; at.m += SIDE)
        for (at.p = 0; at.p < PIXELS; at.p += SIDE) {
            float sums[EACH][EACH] = {};
            for (int k0 = 0; k0 < K_SIZE; k0 += TILE) {
#pragma unroll
                for (int i = 0; i < EACH; ++i) {
                    const int m = at.m + i * TILE + mm, k = k0 + mk;
                    masks[i][mm][mk] = k < K_SIZE && m < M ? w[k * M + m] : 0.0f;
                }
                load_images(images, x, k0 + ty, at.p);
                __syncthreads();
                for (int k = 0; k < TILE; ++k)
#pragma unroll
                    for (int i = 0; i < EACH; ++i)
#pragma unroll
                        for (int j = 0; j < EACH; ++j)
                            sums[i][j] += masks[i][ty][k] * images[j][k][tx];
                __syncthreads();
            }
            store(y, at, sums);
        }
}
#endif

#ifdef ENTRY_conv_image_constant
__constant__ float filters[K_SIZE * M];

// All 25 of conv1 would need more registers than 2 blocks have. A power of two: NVRTC 13.0 and 13.5
// leave out the rest of a loop over min(32, ...) that is unrolled by 5.
constexpr int AT_ONCE = 4;

extern "C" __global__ void __launch_bounds__(TILE* TILE, MIN_BLOCKS)
    conv_image_constant(const float* x, float* y) {
    __shared__ float images[EACH][TILE][TILE];  // [k][p]
    const int tx = threadIdx.x, ty = threadIdx.y;
    for (Step at = {0, 0}; at.m < M; at.m += SIDE)
        for (at.p = 0; at.p < PIXELS; at.p += SIDE) {
            float sums[EACH][EACH] = {};
            for (int k0 = 0; k0 < K_SIZE; k0 += TILE) {
                load_images(images, x, k0 + ty, at.p);
                __syncthreads();
                const int deep = min(TILE, K_SIZE - k0);
#pragma unroll AT_ONCE
                for (int k = 0; k < deep; ++k)
#pragma unroll
                    for (int i = 0; i < EACH; ++i) {
                        const int m = at.m + i * TILE + ty;
                        const float weight = filters[(k0 + k) * M + (m < M ? m : 0)];
#pragma unroll
                        for (int j = 0; j < EACH; ++j) sums[i][j] += weight * images[j][k][tx];
                    }
                __syncthreads();
            }
            store(y, at, sums);
        }
}
#endif
