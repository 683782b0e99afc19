// Direct convolution as the Tegra X1 slides have it ("workload distribution", "per-thread pseudo
// code"): a block has 32 maps of one image's whole output, a thread a tile of 5x8 outputs of one
// map; for each channel the block's footprint goes from the 3D texture (W, H, images x CH), whose
// border is the padding, to shared memory, and coefficients come one by one, front and back.
// Two footprints take turns, so that one barrier a channel is enough. A map of more tiles than a
// block has is gone through in REGIONS. w [CH][R][S][PADDED_MAPS], a row beyond; y (n, M, OH, OW).
#include "stages/conv/shape.cuh"

constexpr int GROUPS = (M + BLOCK_MAPS - 1) / BLOCK_MAPS;
constexpr int PADDED_MAPS = GROUPS * BLOCK_MAPS;
constexpr int FOOT_H = (BLOCK_Y * TILE_H - 1) * STRIDE + R;
constexpr int FOOT_W = (BLOCK_X * TILE_W - 1) * STRIDE + S;
constexpr int FOOT = FOOT_H * FOOT_W;
constexpr int REGIONS_X = (OW + BLOCK_X * TILE_W - 1) / (BLOCK_X * TILE_W);
constexpr int REGIONS_Y = (OH + BLOCK_Y * TILE_H - 1) / (BLOCK_Y * TILE_H);
constexpr int UNROLLED = S <= 8 ? S : 1;

static_assert(READS == NCHW && WRITES == NCHW, "a plane of the texture is a channel");
static_assert(THREADS == BLOCK_MAPS * BLOCK_Y * BLOCK_X && BLOCK_MAPS == 32, "a warp a tile");
static_assert(8 * FOOT <= 48 * 1024, "two footprints in shared memory");

__device__ __forceinline__ void load_footprint(float* pixels, cudaTextureObject_t input, int plane,
                                               int top, int left) {
    for (int i = threadIdx.x; i < FOOT; i += THREADS)
        pixels[i] = tex3D<float>(input, left + i % FOOT_W + 0.5f, top + i / FOOT_W + 0.5f,
                                 plane + 0.5f);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_slides(cudaTextureObject_t input, const float* __restrict__ w, float* __restrict__ y) {
    __shared__ float footprints[2][FOOT];
    const int image = blockIdx.x / GROUPS;
    const int m = blockIdx.x % GROUPS * BLOCK_MAPS + threadIdx.x % BLOCK_MAPS;
    const int tile = threadIdx.x / BLOCK_MAPS;
    const int tile_y = tile / BLOCK_X * TILE_H, tile_x = tile % BLOCK_X * TILE_W;

    int half = 0;
#pragma unroll 1
    for (int region = 0; region < REGIONS_Y * REGIONS_X; ++region) {
        const int y0 = region / REGIONS_X * BLOCK_Y * TILE_H;
        const int x0 = region % REGIONS_X * BLOCK_X * TILE_W;
        float sums[TILE_H][TILE_W] = {};
        const float* coefficients = w + m;
#pragma unroll 1
        for (int c = 0; c < CH; ++c, half ^= 1) {
            load_footprint(footprints[half], input, image * CH + c, y0 * STRIDE - PAD,
                           x0 * STRIDE - PAD);
            __syncthreads();
            const float* pixels =
                footprints[half] + tile_y * STRIDE * FOOT_W + tile_x * STRIDE;
            float front = *coefficients;
#pragma unroll 1
            for (int r = 0; r < R; ++r, pixels += FOOT_W) {
#pragma unroll UNROLLED
                for (int s = 0; s < S; ++s) {
                    coefficients += PADDED_MAPS;
                    const float back = *coefficients;
#pragma unroll
                    for (int i = 0; i < TILE_H; ++i)
#pragma unroll
                        for (int j = 0; j < TILE_W; ++j)
                            sums[i][j] +=
                                pixels[i * STRIDE * FOOT_W + j * STRIDE + s] * front;
                    front = back;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < TILE_H; ++i)
#pragma unroll
            for (int j = 0; j < TILE_W; ++j) {
                const int oy = y0 + tile_y + i, ox = x0 + tile_x + j;
                if (m < M && oy < OH && ox < OW)
                    output_at(y, size_t(image), oy, ox, m) = sums[i][j];
            }
    }
}
