// ReLU and 2x2 mean by shared-memory tiles (report, section 3.2.3): LINES output lines of a map
// need 2 * LINES input rows, which lie together in memory; the block loads them coalesced, then
// averages. A row is W * STEP elements, STEP = channels in NHWC and 1 in NCHW.
// From -D CH, H, W, READS, LINES, THREADS.
#include "stages/layout.cuh"

constexpr int STEP = READS == NHWC ? CH : 1;
constexpr int ROW = W * STEP;
constexpr int OUT = ROW / 2;
static_assert(H % 2 == 0 && W % 2 == 0, "2x2 windows need even maps");
static_assert(2 * LINES * ROW * 4 <= 48 * 1024, "the tile must fit into shared memory");

extern "C" __global__ void __launch_bounds__(THREADS)
    relu_mean_tile(const float* __restrict__ x, float* __restrict__ y, long long lines) {
    __shared__ float tile[2 * LINES * ROW];
    const long long first = (long long)blockIdx.x * LINES;
    const int here = min((long long)LINES, lines - first);
    const float* from = x + first * 2 * ROW;
    for (int i = threadIdx.x; i < here * 2 * ROW; i += THREADS) tile[i] = from[i];
    __syncthreads();
    for (int i = threadIdx.x; i < here * OUT; i += THREADS) {
        const int ox = i % OUT / STEP, c = i % STEP;
        const float* window = tile + i / OUT * 2 * ROW + 2 * ox * STEP + c;
        const float sum = fmaxf(window[0], 0.0f) + fmaxf(window[STEP], 0.0f) +
                          fmaxf(window[ROW], 0.0f) + fmaxf(window[ROW + STEP], 0.0f);
        y[first * OUT + i] = 0.25f * sum;
    }
}
