// Step 3, a near memory, from -D H, W, CH, M, R, S. A block computes an output row of an image,
// a thread an output: threadIdx.x is its map, threadIdx.y its column. The filters of one tap
// (r, s) are copied into shared memory by all threads, then used by every column.
constexpr int OH = H - R + 1;
constexpr int OW = W - S + 1;
static_assert(M * OW <= 1024, "a block has at most 1,024 threads");
static_assert(4 * CH * M <= 48 * 1024, "a tap's filters must fit into shared memory");

extern "C" __global__ void __launch_bounds__(M* OW)
    shared_tap(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y) {
    __shared__ float filters[CH * M];
    const int m = threadIdx.x, column = threadIdx.y;
    const int row = blockIdx.x % OH;
    const size_t n = blockIdx.x / OH;
    float sum = 0.0f;
    for (int tap = 0; tap < R * S; ++tap) {
        __syncthreads();  // nobody reads the tap before any more
        for (int i = column * M + m; i < CH * M; i += M * OW) filters[i] = w[tap * CH * M + i];
        __syncthreads();  // all of this one is there
        const float* window = x + ((n * H + row + tap / S) * W + column + tap % S) * CH;
        for (int c = 0; c < CH; ++c) sum += window[c] * filters[c * M + m];
    }
    y[((n * OH + row) * OW + column) * M + m] = sum;
}
