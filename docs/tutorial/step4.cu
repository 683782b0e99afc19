// Step 4, registers, from -D H, W, CH, M, R, S, CHANNELS. A block computes an image, a thread a
// whole output row of one map: threadIdx.x is its map, threadIdx.y its row. The image lies in
// shared memory, and of the filters one row of taps, CHANNELS channels at a time. For a channel a
// thread holds W input values and OW sums in registers: W + S loads, S * OW multiply-adds.
constexpr int OH = H - R + 1;
constexpr int OW = W - S + 1;
constexpr int THREADS = M * OH;
constexpr int PART = S * CHANNELS * M;  // [s][channel][map]
static_assert(THREADS <= 1024, "a block has at most 1,024 threads");
static_assert(CH % CHANNELS == 0, "channels come in whole parts");
static_assert(4 * (H * W * CH + PART) <= 48 * 1024, "image and filters must fit together");

extern "C" __global__ void __launch_bounds__(THREADS)
    row_a_thread(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y) {
    __shared__ float image[H * W * CH];
    __shared__ float filters[PART];
    const int m = threadIdx.x, row = threadIdx.y;
    const int thread = row * M + m;
    const size_t n = blockIdx.x;
    for (int i = thread; i < H * W * CH; i += THREADS) image[i] = x[n * (H * W * CH) + i];
    float sums[OW] = {};
    for (int r = 0; r < R; ++r)
        for (int first = 0; first < CH; first += CHANNELS) {
            __syncthreads();
            for (int i = thread; i < PART; i += THREADS) {
                const int s = i / (CHANNELS * M), rest = i % (CHANNELS * M);
                filters[i] = w[((r * S + s) * CH + first) * M + rest];
            }
            __syncthreads();
            for (int c = 0; c < CHANNELS; ++c) {
                float line[W];
#pragma unroll
                for (int i = 0; i < W; ++i) line[i] = image[((row + r) * W + i) * CH + first + c];
#pragma unroll
                for (int s = 0; s < S; ++s) {
                    const float weight = filters[(s * CHANNELS + c) * M + m];
#pragma unroll
                    for (int column = 0; column < OW; ++column)
                        sums[column] += line[column + s] * weight;
                }
            }
        }
#pragma unroll
    for (int column = 0; column < OW; ++column)
        y[((n * OH + row) * OW + column) * M + m] = sums[column];
}
