// Step 5, nobody waits, from -D H, W, CH, M, R, S, CHANNELS. Blocks and threads as in step 4. There
// a block waits for a part of the filters before it multiplies. Here two parts lie in shared
// memory: while one is multiplied, each thread fetches its share of the next into registers.
constexpr int OH = H - R + 1;
constexpr int OW = W - S + 1;
constexpr int THREADS = M * OH;
constexpr int PART = S * CHANNELS * M;  // [s][channel][map]
constexpr int SHARE = (PART + THREADS - 1) / THREADS;
constexpr int PARTS = R * (CH / CHANNELS);
static_assert(THREADS <= 1024, "a block has at most 1,024 threads");
static_assert(CH % CHANNELS == 0, "channels come in whole parts");
static_assert(4 * (H * W * CH + 2 * PART) <= 48 * 1024, "image and filters must fit together");

__device__ __forceinline__ int row_of(int part) { return part / (CH / CHANNELS); }
__device__ __forceinline__ int first_of(int part) { return part % (CH / CHANNELS) * CHANNELS; }

__device__ __forceinline__ void fetch(float* share, const float* __restrict__ w, int part,
                                      int thread) {
#pragma unroll
    for (int k = 0; k < SHARE; ++k) {
        const int i = thread + k * THREADS;
        const int s = i / (CHANNELS * M), rest = i % (CHANNELS * M);
        if (i < PART) share[k] = w[((row_of(part) * S + s) * CH + first_of(part)) * M + rest];
    }
}

__device__ __forceinline__ void put(float* filters, const float* share, int thread) {
#pragma unroll
    for (int k = 0; k < SHARE; ++k)
        if (thread + k * THREADS < PART) filters[thread + k * THREADS] = share[k];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fetched_ahead(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y) {
    __shared__ float image[H * W * CH];
    __shared__ float filters[2][PART];
    const int m = threadIdx.x, row = threadIdx.y;
    const int thread = row * M + m;
    const size_t n = blockIdx.x;
    float share[SHARE];
    fetch(share, w, 0, thread);
    for (int i = thread; i < H * W * CH; i += THREADS) image[i] = x[n * (H * W * CH) + i];
    float sums[OW] = {};
    for (int part = 0; part < PARTS; ++part) {
        put(filters[part % 2], share, thread);
        __syncthreads();  // of the other half nobody reads any more
        if (part + 1 < PARTS) fetch(share, w, part + 1, thread);
        for (int c = 0; c < CHANNELS; ++c) {
            float line[W];
#pragma unroll
            for (int i = 0; i < W; ++i)
                line[i] = image[((row + row_of(part)) * W + i) * CH + first_of(part) + c];
#pragma unroll
            for (int s = 0; s < S; ++s) {
                const float weight = filters[part % 2][(s * CHANNELS + c) * M + m];
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
