// Convolution, ReLU and 2x2 mean in one launch (report, section 3.4.1, left unbuilt there).
// The tiled unrolled product with a warp's lanes walking 2x2 windows one after another, so that
// four neighbouring lanes hold a window: ReLU in registers, the mean by two shuffles, and the
// convolution's map never leaves the block.
#include "stages/conv/unrolled.cuh"

static_assert(OH % 2 == 0 && OW % 2 == 0, "2x2 windows need even maps");

extern "C" __global__ void __launch_bounds__(TILE* TILE)
    conv_relu_mean(const float* __restrict__ x, const float* __restrict__ w,
                   float* __restrict__ y) {
    const ProductTile at = product_tile();
    float sums[MAPS_EACH][PIXELS_EACH] = {};
    tiled_product<by_window>(x, w, at, sums);
#pragma unroll
    for (int i = 0; i < MAPS_EACH; ++i)
#pragma unroll
        for (int j = 0; j < PIXELS_EACH; ++j) {
            float mean = fmaxf(sums[i][j], 0.0f);
            mean += __shfl_xor_sync(0xffffffffu, mean, 1);
            mean += __shfl_xor_sync(0xffffffffu, mean, 2);
            const int m = at.m0 + i * TILE + threadIdx.y, p = at.p0 + j * TILE + threadIdx.x;
            if (threadIdx.x % 4 != 0 || m >= M || p >= PIXELS) continue;
            const int window = p / 4;
            y[offset<WRITES, OH / 2, OW / 2, M>(at.n, window / (OW / 2), window % (OW / 2), m)] =
                0.25f * mean;
        }
}
